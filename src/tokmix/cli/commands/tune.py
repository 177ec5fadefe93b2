from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_data, add_imports
from tokmix.cli.commands.train import add_train_settings, train_settings

ABOUT = "random search over settings of train, on one machine or many; what to expect of n trials"
FIRST = ("--out", "--trials", "--space", "--workers", "--minutes")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--out", required=True, help="folder for the trials; the same command joins the search that is there")
    parser.add_argument("--trials", type=int, default=20, help="search until so many are finished (default: %(default)s)")
    parser.add_argument(
        "--space",
        metavar="FILE|NAME",
        help='default, paper, or a .json or .yaml file, {"train.lr": {"loguniform": [1e-4, 1e-2]}}: '
        "uniform, loguniform, int or choice for each setting"
        " (paper: train.lr loguniform from 1e-8 to 0.1, model.dropout uniform from 0 to 0.5)",
    )
    parser.add_argument("--workers", type=int, default=None, help="trials at a time (default: one a GPU, else one a core, at most 8)")
    parser.add_argument(
        "--side-by-side", choices=("auto", "yes", "no"), default="auto",
        help="several trials in one worker, a step of each in turn, up to five (default: on a GPU)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, help="of each trial (default: --train.threads, else 1)")
    parser.add_argument("--storage", metavar="URL", help="postgresql://user@host/database, for many machines (default: a journal file)")
    parser.add_argument("--study", metavar="NAME", help="with --storage: name of the study in the database (default: the folder's)")
    parser.add_argument(
        "--patience",
        type=int,
        help="with --storage: seconds without a sign of life after which another command counts as dead (default: 60)",
    )
    parser.add_argument(
        "--on", metavar="ADDRESS", help="a Dask scheduler, tcp://host:8786: run on its workers, on as many hosts as there are"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a study; an error where there is none")
    add_imports(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.search import tune

    names = ("trials", "space", "workers", "threads", "storage", "study", "patience", "side_by_side", "on", "config", "resume", "imports")
    tune(options.data, options.out, verbose=True, **{name: getattr(options, name) for name in names}, **train_settings(options))
    return 0
