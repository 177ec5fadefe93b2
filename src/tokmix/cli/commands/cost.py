from __future__ import annotations

import argparse

from tokmix.api.costs import DIM, FARTHEST, VOCAB
from tokmix.api.costs import LENGTHS as DEFAULT_LENGTHS
from tokmix.cli.commands.common import add_imports

ABOUT = "show the cost of a stack by length, where two stacks cross, and what a run cost: E x D x H, time, memory, joules"
FIRST = ("--lengths", "--dim", "--causal", "--check", "--json")  # of --help
LENGTHS = ",".join(map(str, DEFAULT_LENGTHS))


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="STACK|RUN",
        help="stacks such as 'hsm*3, attention(heads=8)', or folders of `train`, `tune` or `compare`",
    )
    parser.add_argument("--lengths", default=None, help=f"tokens of a sequence, separated by commas (default: {LENGTHS})")
    parser.add_argument("--dim", type=int, help=f"width of the model (default: {DIM})")
    parser.add_argument("--vocab", type=int, help=f"size of the vocabulary (default: {VOCAB})")
    parser.add_argument("--feed-forward", type=int, default=None, help="inner width of feed-forward nets; 0: none (default: twice --dim)")
    parser.add_argument("--causal", action="store_true", help="as a language model: each token sees only earlier tokens")
    parser.add_argument(
        "--check", action="store_true", help="compare the formulas with the operation counter of torch; exit code 1 if they differ"
    )
    parser.add_argument(
        "--paper", action="store_true", help="the formulas of the HyperMixer paper, as printed and corrected, and its Figure 2"
    )
    parser.add_argument("--farthest", type=int, help=f"longest length to look for crossings (default: {FARTHEST})")
    parser.add_argument("--out", help="new file (.png, .svg or .pdf) for a plot of FLOPs against length")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    import json

    from tokmix.api.costs import cost

    names = ("dim", "vocab", "feed_forward", "causal", "check", "paper", "farthest", "out", "imports")
    result = cost(*options.what, lengths=_lengths(options.lengths), **{name: getattr(options, name) for name in names})
    print(json.dumps(result.record, indent=1) if options.json else result.text)
    return 0 if result.equal else 1


def _lengths(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--lengths {text!r} should be whole numbers separated by commas, such as {LENGTHS}") from None
