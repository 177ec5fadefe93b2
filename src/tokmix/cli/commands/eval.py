from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_data, add_imports, add_model

READING = ("text", "label", "split_column", "header", "format", "separator", "sheet", "pattern", "encoding")
FORMATS = ("csv", "tsv", "jsonl", "parquet", "txt", "xlsx", "sqlite")
ABOUT = "evaluate a trained model on data"
FIRST = ("--split", "--text", "--label", "--encoding", "--json")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_data(parser)
    parser.add_argument("--split", choices=["train", "valid", "test"], default=None, help="default: test, else valid, else train")
    parser.add_argument("--text", default=None, help="text column, or two for a pair: premise,hypothesis (default: as in training)")
    parser.add_argument("--label", default=None, help="column of the class or score (default: as in training)")
    parser.add_argument("--split-column", default=None, help="column that says train, valid or test (default: as in training, or split)")
    parser.add_argument("--header", default=None, help="column names of a file without a header line (default: as in training)")
    parser.add_argument("--format", choices=FORMATS, default=None, help="file format (default: by the file's name, or as in training)")
    parser.add_argument("--separator", default=None, help="between the cells of a csv (default: as in training, or from the first line)")
    parser.add_argument("--sheet", default=None, help="sheet of a workbook, table of a database (default: as in training, or the only one)")
    parser.add_argument("--pattern", default=None, help="which files of a folder to read, such as *.py (default: as in training)")
    parser.add_argument("--encoding", default=None, help="text encoding of the files (default: as in training)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.training.distributed import check_alone
    from tokmix.training.evaluate import run as evaluate

    check_alone("eval is one process")

    reading = {name: getattr(options, name) for name in READING}
    evaluate(options.model, options.data, split=options.split, as_json=options.json, imports=options.imports, **reading)
    return 0
