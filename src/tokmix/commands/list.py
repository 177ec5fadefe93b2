from __future__ import annotations

import argparse

ABOUT = "the known mixers: order, modes, options"


def add(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    from tokmix.summary import list_mixers

    print(list_mixers())
    return 0
