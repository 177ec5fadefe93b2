from __future__ import annotations

import argparse

ABOUT = "train a small model on the source of Python's standard library and report on it, in a few minutes"


def add(parser: argparse.ArgumentParser) -> None:
    kinds = "stdlib: are two lines of code in the right order; shapes: a toy task, and which tokens read which; in a checkout"
    parser.add_argument("--what", choices=["stdlib", "shapes"], default="stdlib", help=f"{kinds} (default: %(default)s)")
    parser.add_argument("--out", default="out/demo", help="folder for the results (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data order (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="shapes: training time in all (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    if options.what == "shapes":
        from tokmix.study import checkout

        checkout.load("toy.demo", "the toy task of shapes").main(options.out, options.seconds, options.seed)
    else:
        from tokmix.cli.demo.stdlib import main as stdlib

        stdlib(options.out, options.seed)
    return 0
