from __future__ import annotations

import argparse

ABOUT = "train on Python's own standard library, from text to a model that predicts, in a few minutes"


def add(parser: argparse.ArgumentParser) -> None:
    kinds = "stdlib: which package a snippet comes from; shapes: a toy task, and who attends to whom"
    parser.add_argument("--what", choices=["stdlib", "shapes"], default="stdlib", help=f"{kinds} (default: %(default)s)")
    parser.add_argument("--out", default="out/demo", help="folder for what is written (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="shapes: time for training in all (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    if options.what == "shapes":
        from tokmix.cli.demo.shapes import main as shapes

        shapes(options.out, options.seconds, options.seed)
    else:
        from tokmix.cli.demo.stdlib import main as stdlib

        stdlib(options.out, options.seed)
    return 0
