from __future__ import annotations

import argparse
from typing import Any

from tokmix.api.settings import WARM_UP
from tokmix.cli.arguments import add_settings, said
from tokmix.cli.commands.common import add_data, add_imports
from tokmix.training.settings import GROUPS

ABOUT = "a table or a pile of text -> a trained, saved, usable model"
FIRST = ("--out", "--stack", "--minutes", "--seed", "--config")  # of --help
SHORT = (
    ("--stack", "model.stack", str, "the mixers, bottom first, such as 'hsm*2, attention(heads=4)'; default: by the kind of data"),
    ("--minutes", "train.minutes", float, "train at most this long; default: by the size of the data"),
    ("--epochs", "train.epochs", int, "how often each row is read; default: by the size of the data"),
    ("--from", "train.start", str, "start from an encoder: a folder that `tokmix pretrain` wrote, or the name of a shipped one"),
    ("--seed", "train.seed", int, "of first weights, order and dropout; default: 0"),
    ("--report-to", "train.report_to", str, "also tell a tracker: tensorboard, wandb, mlflow or trackio; in the run's folder, offline"),
    ("--test", "prepare.test_file", str, "a file to report on; nothing is then split off the data itself"),
)


def add(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--out", required=True, help="new folder for the model, the checkpoints and the log")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
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
    for group, settings in GROUPS.items():
        add_settings(parser, settings, f"{group}.")


def train_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What of those stood on the command line, by full name."""
    given: dict[str, Any] = {}
    for group, settings in GROUPS.items():
        given |= said(options, settings, f"{group}.")
    return given


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import train

    names = ("config", "resume", "imports")
    train(options.data, options.out, verbose=True, **{name: getattr(options, name) for name in names}, **train_settings(options))
    return 0
