from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports
from tokmix.cli.commands.train import add_threads, add_train_settings, train_settings

ABOUT = "plain text -> an encoder that `train --from` starts from"
FIRST = ("--out", "--objective", "--stack", "--minutes", "--config")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="files or folders of plain text")
    parser.add_argument("--out", required=True, help="new folder for the encoder, the checkpoints and the log")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument(
        "--objective", dest="train.task", choices=["mlm", "rtd"], default=argparse.SUPPRESS,
        help="mlm: find hidden tokens (the default); rtd: tell replaced tokens, which a small generator puts there",
    )  # fmt: skip
    add_imports(parser)
    add_threads(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import pretrain

    names = ("config", "resume", "imports")
    pretrain(options.texts, options.out, verbose=True, **{name: getattr(options, name) for name in names}, **train_settings(options))
    return 0
