from __future__ import annotations

import argparse
from pathlib import Path

ABOUT = "write a template for a mixer of your own: causal, with a step for decoding"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the mixer, such as my_mixer")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder for NAME.py (default: the current folder)")


def run(options: argparse.Namespace) -> int:
    from tokmix.contract.template import write

    path = write(options.name, options.out)
    print(f"written {path}; check it with: tokmix check {path}")
    return 0
