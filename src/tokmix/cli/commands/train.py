from __future__ import annotations

import argparse
from typing import Any

from tokmix.api.settings import WARM_UP
from tokmix.cli.arguments import add_settings, given_settings
from tokmix.cli.commands.common import add_data, add_imports
from tokmix.training.settings import GROUPS, NO_ENCODER

ABOUT = "train a model on a table or on plain text, save it and report its figures"
FIRST = ("--out", "--stack", "--minutes", "--seed", "--config")  # of --help
SHORT = (
    ("--stack", "model.stack", str, "mixers from the bottom layer up, such as 'hsm*2, attention(heads=4)'; default: by the kind of data"),
    ("--minutes", "train.minutes", float, "time limit of training; default: by the size of the data"),
    ("--epochs", "train.epochs", int, "passes over the data; default: by the size of the data"),
    ("--from", "train.start", str, "encoder to start from: a folder, a shipped one's name, or none; default: a shipped one if it fits"),
    ("--seed", "train.seed", int, "seed of initial weights, data order and dropout; default: 0"),
    ("--report-to", "train.report_to", str, "also log to a tracker: tensorboard, wandb, mlflow or trackio; offline, into the run's folder"),
    ("--test", "prepare.test_file", str, "separate file for the test split; the data itself then gives no test rows"),
)


def add(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_run(parser, "new folder for the model, the checkpoints and the log")


def add_run(parser: argparse.ArgumentParser, out: str) -> None:
    """What every command that trains one model takes; `out` is the help of --out."""
    parser.add_argument("--out", required=True, help=out)
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", dest="train.threads", type=int, default=argparse.SUPPRESS, help="short for --train.threads", metavar="VALUE"
    )


def add_train_settings(parser: argparse.ArgumentParser) -> None:
    """--config, every setting of a run by its full name, and short names of the usual ones."""
    parser.add_argument("--config", help="a .json or .yaml file of settings, or the name of a recipe")
    for short, name, read, about in SHORT:
        shown = f"{about} (short for --{name})"
        parser.add_argument(short, dest=name, type=read, default=argparse.SUPPRESS, help=shown, metavar="VALUE")
    parser.add_argument(
        "--pretrain", dest="train.pretrain", action="store_const", const=WARM_UP, default=argparse.SUPPRESS,
        help=f"short for --train.pretrain {WARM_UP}",
    )  # fmt: skip
    parser.add_argument(
        "--no-from", dest="train.start", action="store_const", const=NO_ENCODER, default=argparse.SUPPRESS,
        help=f"short for --train.start {NO_ENCODER}: no encoder, also where one is shipped",
    )  # fmt: skip
    for group, settings in GROUPS.items():
        add_settings(parser, settings, f"{group}.")


def train_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Those settings that were given on the command line, by full name."""
    return {name: value for group, fields in GROUPS.items() for name, value in given_settings(options, fields, f"{group}.").items()}


def run_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The keywords that the Python functions take for the options of `add_run`."""
    return {"verbose": True} | {name: getattr(options, name) for name in ("config", "resume", "imports")} | train_settings(options)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import train

    train(options.data, options.out, **run_settings(options))
    return 0
