from __future__ import annotations

import argparse

ABOUT = "train the toy task of shapes for a minute and draw who attends to whom"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", help="folder for the picture (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for training in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> int:
    from tokmix.demo import main

    main(options.out, options.seconds, options.seed)
    return 0
