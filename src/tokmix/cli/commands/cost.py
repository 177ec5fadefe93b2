from __future__ import annotations

import argparse

from tokmix.api.costs import DIM, FARTHEST, VOCAB
from tokmix.api.costs import LENGTHS as DEFAULT_LENGTHS
from tokmix.cli.commands.common import add_imports

ABOUT = "what a stack costs by length, where two cross, and what a run did cost: E x D x H, time, memory, joules"
FIRST = ("--lengths", "--dim", "--causal", "--check", "--json")  # of --help
LENGTHS = ",".join(map(str, DEFAULT_LENGTHS))


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="STACK|RUN", help="stacks like 'hsm*3, attention(heads=8)', or folders: run, model, tune, compare"
    )
    parser.add_argument("--lengths", default=None, help=f"tokens of a sequence, with commas (default: {LENGTHS})")
    parser.add_argument("--dim", type=int, help=f"width (default: {DIM})")
    parser.add_argument("--vocab", type=int, help=f"size of the vocabulary (default: {VOCAB})")
    parser.add_argument("--feed-forward", type=int, default=None, help="inner width; 0 = none (default: twice the width)")
    parser.add_argument("--causal", action="store_true", help="as a language model, each token seeing only what came before")
    parser.add_argument(
        "--check", action="store_true", help="compare the formulas with torch's operation counter; exit 1 where they differ"
    )
    parser.add_argument(
        "--paper", action="store_true", help="the HyperMixer paper's formulas, printed and corrected, and Figure 2's points"
    )
    parser.add_argument("--farthest", type=int, help=f"look for crossings up to this length (default: {FARTHEST})")
    parser.add_argument("--out", help="a picture (.png, .svg or .pdf) of FLOPs against length")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    import json

    from tokmix.api.costs import cost

    names = ("dim", "vocab", "feed_forward", "causal", "check", "paper", "farthest", "out", "imports")
    found = cost(*options.what, lengths=_lengths(options.lengths), **{name: getattr(options, name) for name in names})
    print(json.dumps(found.record, indent=1) if options.json else found.text)
    return 0 if found.equal else 1


def _lengths(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--lengths {text!r} should be whole numbers with commas between, like {LENGTHS}") from None
