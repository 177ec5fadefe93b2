from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "show which words decide a label or score, and which tokens read which, layer by layer and in the whole stack"
FIRST = ("--out", "--layer", "--samples", "--seed", "--json")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="a text, or two for a model of text pairs")
    parser.add_argument("--out", default=None, metavar="MAP.png", help="new file (.png, .svg or .pdf) for a plot of the maps")
    parser.add_argument("--json", action="store_true", help="print the maps as JSON instead of as shades")
    parser.add_argument(
        "--samples", type=int, default=None, help="random directions per token, for an estimate; 0: exact (default: exact for short texts)"
    )
    parser.add_argument("--layer", type=int, help="show only this layer, counted from 1, with its heads; 0: only the whole stack")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random directions (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.study.explain.run import run as explain

    settings = {name: getattr(options, name) for name in ("out", "samples", "layer", "seed", "imports")}
    explain(options.model, options.texts, as_json=options.json, **settings)
    return 0
