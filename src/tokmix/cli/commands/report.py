from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "write one HTML page about runs, models, tunings, comparisons and papers: tables, curves, costs, maps"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="RUN", nargs="+", help="folders of `train`, `tune`, `compare` or `papers`, or model folders")
    parser.add_argument("--out", default="report.html", help="new file for the page, which needs no other file (default: %(default)s)")
    parser.add_argument("--text", help="text for the maps; a tab separates the texts of a pair (default: one of the data)")
    parser.add_argument("--title", default=None, help="heading of the page")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.pages.report import write

    path = write(options.folders, options.out, text=options.text, title=options.title, imports=options.imports)
    print(f"report {path} ({path.stat().st_size / 1000:,.0f} kB)")
    return 0
