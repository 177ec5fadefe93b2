from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports
from tokmix.cli.commands.train import add_threads, add_train_settings, train_settings

ABOUT = "a sentence encoder and a table of texts -> a cheaper encoder with the same embeddings"
FIRST = ("--out", "--stack", "--model.dim", "--minutes", "--config")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER", help="a folder that sentence-transformers saved, with its tokenizer.json")
    parser.add_argument("texts", metavar="TEXTS", help="a table with a column of texts, or a folder that `tokmix prepare` made of one")
    parser.add_argument("--out", required=True, help="new folder for the encoder, the teacher's vectors, the checkpoints and the log")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import distill

    names = ("config", "resume", "imports")
    given = {**{name: getattr(options, name) for name in names}, **train_settings(options)}
    distill(options.teacher, options.texts, options.out, verbose=True, **given)
    return 0
