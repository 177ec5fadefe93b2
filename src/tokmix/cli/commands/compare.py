from __future__ import annotations

import argparse

from tokmix.api.search import SEQUENCES
from tokmix.cli.commands.common import add_imports
from tokmix.cli.commands.train import add_threads, add_train_settings, train_settings

ABOUT = "several stacks on one task: equal parameters, seeds, tests of significance, what each cost"
FIRST = ("--data", "--out", "--seeds", "--fractions", "--epochs")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stacks", nargs="+", metavar="STACK", help="what `show` takes, such as 'attention(heads=4)*2'")
    parser.add_argument("--data", required=True, help="what `prepare` takes, or a folder it wrote; shapes: the built-in toy task")
    parser.add_argument("--out", required=True, help="new folder for the runs, compare.json and the pictures")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from --seed on (default: %(default)s)")
    parser.add_argument("--fractions", default="1", help="shares of train, such as 0.05,0.1,0.25,0.5,1 (default: %(default)s)")
    parser.add_argument(
        "--match",
        choices=("largest", "first"),
        help="whose parameters all get, by the feed-forward's width (default: largest)",
    )
    parser.add_argument("--no-match", dest="match", action="store_const", const="none", help="every stack as it is")
    parser.add_argument("--jobs", type=int, help="processes at a time (default: a core each, or four a GPU)")
    parser.add_argument(
        "--side-by-side", choices=("auto", "yes", "no"), default="auto",
        help="the seeds of a stack in one process, a step of each in turn, up to five (default: on a GPU)",
    )  # fmt: skip
    parser.add_argument(
        "--on", metavar="ADDRESS", help="a Dask scheduler, tcp://host:8786: run on its workers, on as many hosts as there are"
    )
    parser.add_argument("--resume", action="store_true", help="go on in --out: what has finished is kept")
    parser.add_argument("--n", type=int, help=f"shapes: sequences to train on (default: {SEQUENCES})")
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.search import compare

    names = ("seeds", "match", "jobs", "side_by_side", "on", "n", "config", "resume", "imports")
    given = {name: getattr(options, name) for name in names}
    found = compare(
        options.stacks, options.data, options.out, fractions=_fractions(options.fractions), verbose=True, **given, **train_settings(options)
    )
    failed = [run for run in found.record["runs"] if run["state"] == "failed"]
    return 1 if failed else 0


def _fractions(given: str) -> list[float]:
    try:
        return [float(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"--fractions {given!r} should be numbers with commas between, such as 0.1,0.5,1") from None
