from __future__ import annotations

import argparse

from tokmix.cli.commands.train import add_run, run_settings

ABOUT = "train a cheaper encoder to do what a sentence encoder does"
FIRST = ("--out", "--stack", "--model.dim", "--minutes", "--config")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER", help="a folder that sentence-transformers saved, with its tokenizer.json")
    texts = "plain text, a table with a column of texts, or a folder that `tokmix prepare` made"
    parser.add_argument("texts", metavar="TEXTS", help=texts)
    add_run(parser, "new folder for the encoder, the teacher's vectors, the checkpoints and the log")


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import distill

    distill(options.teacher, options.texts, options.out, **run_settings(options))
    return 0
