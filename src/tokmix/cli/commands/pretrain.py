from __future__ import annotations

import argparse

from tokmix.cli.commands.train import add_run, run_settings

ABOUT = "train an encoder on plain text, for `train --from`"
FIRST = ("--out", "--objective", "--stack", "--minutes", "--config")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="files or folders of plain text")
    parser.add_argument(
        "--objective", dest="train.task", choices=["mlm", "rtd"], default=argparse.SUPPRESS,
        help="mlm: predict hidden tokens (the default); rtd: detect tokens that a small generator replaced",
    )  # fmt: skip
    add_run(parser, "new folder for the encoder, the checkpoints and the log")


def run(options: argparse.Namespace) -> int:
    from tokmix.api.fit import pretrain

    pretrain(options.texts, options.out, **run_settings(options))
    return 0
