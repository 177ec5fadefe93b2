from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_data, add_imports
from tokmix.cli.commands.train import add_train_settings, train_settings

ABOUT = "search settings of `train` at random, on one machine or many; show the expected best of n trials"
FIRST = ("--out", "--trials", "--space", "--workers", "--minutes")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--out", required=True, help="folder for the trials; the same command joins a search that is already there")
    parser.add_argument("--trials", type=int, default=20, help="search until this many trials are finished (default: %(default)s)")
    parser.add_argument(
        "--space",
        metavar="FILE|NAME",
        help='default, paper, or a .json or .yaml file, {"train.lr": {"loguniform": [1e-4, 1e-2]}}: '
        "uniform, loguniform, int or choice for each setting"
        " (paper: train.lr loguniform from 1e-8 to 0.1, model.dropout uniform from 0 to 0.5)",
    )
    parser.add_argument("--workers", type=int, default=None, help="trials at a time (default: one per GPU, else one per core, at most 8)")
    parser.add_argument(
        "--side-by-side", choices=("auto", "yes", "no"), default="auto",
        help="train up to five trials in one worker, a step of each in turn; auto: on a GPU (default: auto)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, help="threads of each trial (default: --train.threads, else 1)")
    parser.add_argument(
        "--storage", metavar="URL", help="database for many machines, postgresql://user@host/database (default: a journal file)"
    )
    parser.add_argument("--study", metavar="NAME", help="with --storage: name of the study (default: the name of the folder)")
    parser.add_argument(
        "--patience", type=int, help="with --storage: seconds without a heartbeat after which another command counts as dead (default: 60)"
    )
    parser.add_argument(
        "--on", metavar="ADDRESS", help="address of a Dask scheduler, such as tcp://host:8786; trials run on all its workers"
    )
    parser.add_argument("--resume", action="store_true", help="continue a search; an error if there is none")
    add_imports(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.search import tune

    names = ("trials", "space", "workers", "threads", "storage", "study", "patience", "side_by_side", "on", "config", "resume", "imports")
    tune(options.data, options.out, verbose=True, **{name: getattr(options, name) for name in names}, **train_settings(options))
    return 0
