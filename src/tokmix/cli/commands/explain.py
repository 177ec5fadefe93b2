from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "which words made a label or score, and who reads whom: maps of a text, layer by layer and of the whole stack"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="a text; for a model of pairs two")
    parser.add_argument("--out", default=None, metavar="MAP.png", help="draw the maps into this .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print the maps as JSON instead of in shades")
    parser.add_argument(
        "--samples",
        type=int,
        default=None,
        help="estimate from so many random directions a token; 0: exact (default: exact for short texts)",
    )
    parser.add_argument("--layer", type=int, default=None, help="this one alone, counted from 1, with every head; 0: the whole stack alone")
    parser.add_argument("--seed", type=int, default=0, help="of the random directions (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.study.explain.run import run as explain

    asked = {name: getattr(options, name) for name in ("out", "samples", "layer", "seed", "imports")}
    explain(options.model, options.texts, as_json=options.json, **asked)
    return 0
