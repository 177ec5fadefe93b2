from __future__ import annotations

import argparse

from tokmix.commands.common import add_data, add_imports, add_model

ABOUT = "the figures of a trained model on data"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_data(parser)
    parser.add_argument("--split", choices=["train", "valid", "test"], default=None, help="default: test, else valid, else what is there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.lab.evaluate import run as evaluate

    evaluate(options.model, options.data, split=options.split, as_json=options.json, imports=options.imports)
    return 0
