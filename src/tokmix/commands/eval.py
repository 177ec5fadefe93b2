from __future__ import annotations

import argparse

from tokmix.commands.common import add_data, add_imports, add_model

ABOUT = "the figures of a trained model on data"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_data(parser)
    parser.add_argument("--split", choices=["train", "valid", "test"], default=None, help="default: test, else valid, else what is there")
    parser.add_argument("--text", default=None, help="text column, or two for a pair (default: those of training)")
    parser.add_argument("--label", default=None, help="column of the class or score (default: that of training)")
    parser.add_argument("--header", default=None, help="names of the columns of a file without a header line: text,label")
    parser.add_argument("--encoding", default=None, help="of the file (default: utf-8)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.lab.evaluate import run as evaluate

    reading = {name: getattr(options, name) for name in ("text", "label", "header", "encoding")}
    evaluate(options.model, options.data, split=options.split, as_json=options.json, imports=options.imports, **reading)
    return 0
