from __future__ import annotations

import argparse
from typing import Any

ABOUT = "what a stack costs by length, where two cross, and what a run did cost: E x D x H, time, memory, joules"
LENGTHS = "64,128,256,512,1024,2048,4096,8192"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", metavar="STACK|RUN", help="stacks like 'hsm*3, attention(heads=8)', or folders: run, model, tune, compare"
    )
    parser.add_argument("--lengths", default=None, help=f"tokens of a sequence, with commas (default: {LENGTHS})")
    parser.add_argument("--dim", type=int, default=256, help="width (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=30522, help="size of the vocabulary (default: %(default)s)")
    parser.add_argument("--feed-forward", type=int, default=None, help="inner width; 0 = none (default: twice the width)")
    parser.add_argument("--causal", action="store_true", help="as a language model, each token seeing only what came before")
    parser.add_argument(
        "--check", action="store_true", help="compare the formulas with torch's operation counter; exit 1 where they differ"
    )
    parser.add_argument(
        "--paper", action="store_true", help="the HyperMixer paper's formulas, printed and corrected, and Figure 2's points"
    )
    parser.add_argument("--farthest", type=int, default=32768, help="look for crossings up to this length (default: %(default)s)")
    parser.add_argument("--out", help="a picture (.png, .svg or .pdf) of FLOPs against length")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    from tokmix.cost.runs import is_result

    folders = [one for one in options.what if is_result(one)]
    if not options.what and not options.paper:
        raise ValueError("nothing to cost: give one or more stacks, or run folders, or --paper")
    if folders and len(folders) < len(options.what):
        stack = next(one for one in options.what if one not in folders)
        raise ValueError(f"{folders[0]!r} is a folder of a result and {stack!r} is not: give stacks or results, not both")
    return _results(options) if folders else _stacks(options)


def _results(options: argparse.Namespace) -> int:
    import json

    from tokmix.cost.runs import results
    from tokmix.cost.show import result_table

    for name in ("check", "paper", "out", "lengths"):
        if getattr(options, name):
            raise ValueError(f"--{name} is about stacks; {options.what[0]!r} is a folder of a result")
    found = [one.record() for path in options.what for one in results(path)]
    print(json.dumps({"results": found}, indent=1) if options.json else result_table(found))
    return 0


def _stacks(options: argparse.Namespace) -> int:
    import json

    from tokmix.cost import counter, paper, show, stacks

    width = "auto" if options.feed_forward is None else options.feed_forward
    shape = stacks.Shape(options.dim, options.vocab, width, options.causal)
    lengths = _lengths(options.lengths)
    priced = [stacks.Priced(_stack(one), lengths, shape, options.farthest) for one in options.what]
    found: dict[str, Any] = {"stacks": [one.record() for one in priced]}
    parts = [show.stack_tables(one) for one in priced]
    different = False
    if options.check:
        for one, record in zip(priced, found["stacks"], strict=True):
            checks = [counter.check(one.model, length) for length in lengths]
            record["check"] = [check.record() for check in checks]
            parts.append(show.check_table(one.name, checks))
            different |= not all(check.equal for check in checks)
    if pairs := stacks.pairs(priced, options.farthest):
        found["crossings"] = [pair.record() for pair in pairs]
        parts.append(show.pair_lines(pairs))
    if options.paper:
        found["paper"] = paper.table(paper.Sizes(options.dim, 2 * options.dim))
        parts.append(show.paper_table(found["paper"]))
    if options.out:
        parts.append(f"picture {_draw(options.out, priced, found)}")
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(parts))
    return 1 if different else 0


def _stack(text: str) -> str:
    """What is neither a stack nor a folder of a result should be told apart from a misspelt mixer."""
    from pathlib import Path

    from tokmix import stack

    try:
        stack.parse(text)
    except ValueError as error:
        if Path(text).exists():
            raise ValueError(f"{text!r} is there, but is neither a run, model, tune or compare folder nor a stack") from None
        if "/" in text:
            raise ValueError(f"{text!r} is neither a folder nor a stack: {error}") from None
        raise
    return text


def _lengths(text: str | None) -> list[int]:
    words = (text or LENGTHS).split(",")
    try:
        found = [int(word) for word in words]
    except ValueError:
        raise ValueError(f"--lengths {text!r} should be whole numbers with commas between, like {LENGTHS}") from None
    if min(found) < 1:
        raise ValueError(f"--lengths {text!r}: a length is at least 1")
    return sorted(set(found))


def _draw(path: str, priced: list[Any], found: dict[str, Any]) -> Any:
    from tokmix.cost import show

    curves: dict[str, Any] = {}
    for one in priced:
        curves[one.name] = (one.lengths, [sum(cost.matmul for cost in costs) for costs in zip(*one.layers, strict=True)])
    title = "forward pass of all layers, matrix products"
    if not priced:
        known, title = found["paper"], "one token-mixing layer, by the HyperMixer paper's formulas"
        names = {"hypermixing": "HyperMixing", "attention_printed": "attention, printed", "attention_corrected": "attention, corrected"}
        curves = {names[name]: (known["lengths"], flops) for name, flops in known["flops"].items()}
    return show.draw(path, curves, title)
