"""Arguments that several commands share."""

from __future__ import annotations

import argparse


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="what `prepare` takes, or a folder it wrote")


def add_imports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help="a file with mixers of your own")
