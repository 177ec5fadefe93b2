from __future__ import annotations

import argparse

from tokmix.cli.commands.train import add_run, run_settings

ABOUT = "train a sentence encoder on pairs of texts (contrastive learning)"
FIRST = ("--out", "--minutes", "--seed", "--config", "--train.lr")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="ENCODER", help="a folder that `tokmix pretrain` wrote, or the name of a shipped encoder")
    parser.add_argument("pairs", metavar="PAIRS", help="a table: in each row two texts and a class, entailment, contradiction, 1 or 0")
    add_run(parser, "new folder for the model, the checkpoints and the log")


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import embed_train

    embed_train(options.encoder, options.pairs, options.out, **run_settings(options))
    return 0
