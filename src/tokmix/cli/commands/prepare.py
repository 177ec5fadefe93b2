from __future__ import annotations

import argparse

from tokmix.cli.arguments import add_settings, given_settings
from tokmix.data.prepare.settings import PrepareSettings

ABOUT = "turn text or tables into token files, with a tokenizer and a data card"
FIRST = ("--out", "--task", "--text", "--label", "--tokenizer")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    kinds = "csv, tsv, jsonl, json, parquet, xlsx, sqlite, txt (also .gz), - for standard input, a folder of those or by class, or hub:NAME"
    parser.add_argument("data", metavar="DATA", help=kinds)
    parser.add_argument("--out", required=True, help="new folder for the token files")
    add_settings(parser, PrepareSettings)


def run(options: argparse.Namespace) -> int:
    from tokmix.data.prepare.pipeline import prepare

    print(prepare(options.data, options.out, **given_settings(options, PrepareSettings)).summary())
    print(f"written to {options.out}")
    return 0
