from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports
from tokmix.cli.commands.train import add_threads, add_train_settings, train_settings

ABOUT = "an encoder and pairs of texts -> sentence embeddings, by contrast"
FIRST = ("--out", "--minutes", "--seed", "--config", "--train.lr")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", metavar="ENCODER", help="a folder that `tokmix pretrain` wrote, or the name of a shipped encoder")
    parser.add_argument("pairs", metavar="PAIRS", help="a table of two texts and a class: entailment and contradiction, or 1 and 0")
    parser.add_argument("--out", required=True, help="new folder for the model, the checkpoints and the log")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import embed_train

    names = ("config", "resume", "imports")
    given = {**{name: getattr(options, name) for name in names}, **train_settings(options)}
    embed_train(options.encoder, options.pairs, options.out, verbose=True, **given)
    return 0
