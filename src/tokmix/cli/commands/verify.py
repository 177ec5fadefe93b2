from __future__ import annotations

import argparse

ABOUT = "check that the files of a folder are as tokmix wrote them"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+",
        help="what `prepare`, `train`, `transfer`, `export`, `tune` or `compare` wrote, or a model folder",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """1 if something is damaged."""
    from tokmix.study.verify import DAMAGED, verify

    files = [file for folder in options.folders for file in verify(folder)]
    for file in files:
        print(file.line())
    damaged = sum(file.state == DAMAGED for file in files)
    print(f"{len(files)} checked, {damaged} damaged")
    return 1 if damaged else 0
