from __future__ import annotations

import argparse

from tokmix.cli.arguments import add_settings, given_settings
from tokmix.cli.commands.common import add_imports
from tokmix.training.transfer.settings import TransferSettings

ABOUT = "replace attention in a Hugging Face model by other mixers and train them to match the old model"
FIRST = ("--data", "--stack", "--layers", "--out", "--tokens")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER", help="a folder that save_pretrained wrote, with its tokenizer.json")
    parser.add_argument("--data", metavar="TEXT", nargs="+", required=True, help="files or folders of text, or what `tokmix prepare` wrote")
    parser.add_argument("--out", required=True, help="new folder for the model, the checkpoints and the logs")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    add_imports(parser)
    add_settings(parser, TransferSettings)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.transfer import transfer

    given = given_settings(options, TransferSettings)
    if "stack" not in given:
        raise ValueError("--stack is missing: name a mixer, such as 'hypermixing(heads=4)'")
    transfer(options.teacher, options.data, options.out, resume=options.resume, imports=options.imports, verbose=True, **given)
    return 0
