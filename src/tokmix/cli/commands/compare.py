from __future__ import annotations

import argparse

from tokmix.api.search import SEQUENCES
from tokmix.cli.commands.common import DATA, add_imports
from tokmix.cli.commands.train import add_threads, add_train_settings, train_settings

ABOUT = "compare stacks on one task: equal parameters, several seeds, significance tests, cost"
FIRST = ("--data", "--out", "--seeds", "--fractions", "--epochs")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stacks", nargs="+", metavar="STACK", help="mixers from the bottom layer up, such as 'attention(heads=4)*2'")
    parser.add_argument("--data", required=True, help=f"{DATA}, or a folder that `prepare` wrote; shapes: the toy task, in a checkout")
    parser.add_argument("--out", required=True, help="new folder for the runs, compare.json and the plots")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, counted up from --seed (default: %(default)s)")
    parser.add_argument("--fractions", default="1", help="shares of train to learn from, such as 0.05,0.1,0.5,1 (default: %(default)s)")
    parser.add_argument(
        "--match",
        choices=("largest", "first"),
        help="stack whose number of parameters all get, by the width of their feed-forward nets (default: largest)",
    )
    parser.add_argument("--no-match", dest="match", action="store_const", const="none", help="keep every stack as it is")
    parser.add_argument("--jobs", type=int, help="processes at a time (default: one per core, or four per GPU)")
    parser.add_argument(
        "--side-by-side", choices=("auto", "yes", "no"), default="auto",
        help="train up to five seeds of a stack in one process, a step of each in turn; auto: on a GPU (default: auto)",
    )  # fmt: skip
    parser.add_argument(
        "--on", metavar="ADDRESS", help="address of a Dask scheduler, such as tcp://host:8786; runs start on all its workers"
    )
    parser.add_argument("--resume", action="store_true", help="continue the comparison in --out; finished runs are kept")
    parser.add_argument("--n", type=int, help=f"shapes: number of training sequences (default: {SEQUENCES})")
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.search import compare

    names = ("seeds", "match", "jobs", "side_by_side", "on", "n", "config", "resume", "imports")
    settings = {name: getattr(options, name) for name in names} | train_settings(options)
    result = compare(options.stacks, options.data, options.out, fractions=_fractions(options.fractions), verbose=True, **settings)
    return 1 if any(run["state"] == "failed" for run in result.record["runs"]) else 0


def _fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--fractions {text!r} should be numbers separated by commas, such as 0.1,0.5,1") from None
