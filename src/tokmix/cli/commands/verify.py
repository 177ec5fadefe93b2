from __future__ import annotations

import argparse

ABOUT = "whether every file of a folder is as tokmix wrote it"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="of `prepare`, `train`, `tune` or `compare`, or a model folder")


def run(options: argparse.Namespace) -> int:
    """1 where something is damaged."""
    from tokmix.study.verify import DAMAGED, verify

    found = [one for folder in options.folders for one in verify(folder)]
    for one in found:
        print(one.line())
    damaged = sum(one.state == DAMAGED for one in found)
    print(f"{len(found)} checked, {damaged} damaged")
    return 1 if damaged else 0
