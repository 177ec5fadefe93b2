"""Arguments that several commands share."""

from __future__ import annotations

import argparse


def reads_as_stack(text: str) -> bool:
    """Of mixers that are known: any one word could be the name of a mixer."""
    from tokmix.core import stack
    from tokmix.core.mixer import mixers

    try:
        return all(spec.name in mixers() for spec in stack.parse(text))
    except ValueError:
        return False


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="what `prepare` takes, or a folder it wrote")


def add_imports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help="a file with mixers of your own")
