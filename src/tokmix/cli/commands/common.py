"""Arguments that several commands share."""

from __future__ import annotations

import argparse

DATA = "a table, plain text, a folder of files, or hub:NAME, as `tokmix prepare --help` lists them"


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help=f"{DATA}, or a folder that `prepare` wrote")


def add_imports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help="file with mixers of your own")
