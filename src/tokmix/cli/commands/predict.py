from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "predict labels or scores of texts with a trained model"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=["-"], help="texts, a file, or - for standard input (the default)")
    parser.add_argument("--format", choices=["jsonl", "table", "csv"], default="jsonl", help="output format (default: %(default)s)")
    parser.add_argument("--top", type=int, default=None, help="show only the N most likely classes of each text")
    parser.add_argument("--encoding", default="utf-8", help="text encoding of the file or of standard input (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.training.distributed import check_alone
    from tokmix.training.predict import run as predict

    check_alone("predict is one process")

    predict(options.model, options.texts, format=options.format, encoding=options.encoding, imports=options.imports, top=options.top)
    return 0
