from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tokmix.cli.commands.common import add_imports, reads_as_stack
from tokmix.core.checks import is_there

ABOUT = "what a stack costs by length, where two cross, and what a run did cost: E x D x H, time, memory, joules"
LENGTHS = "64,128,256,512,1024,2048,4096,8192"
DIM, VOCAB, FARTHEST = 256, 30522, 32768
OF_STACKS = ("lengths", "vocab", "feed_forward", "causal", "check", "farthest")  # and not of the paper's formulas


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
    from tokmix.study.cost.runs import is_result
    from tokmix.training.imports import import_files

    import_files(options.imports)
    folders = [one for one in options.what if is_result(one)]
    if not options.what and not options.paper:
        raise ValueError("nothing to cost: give one or more stacks, or run folders, or --paper")
    if folders and len(folders) < len(options.what):
        stack = next(one for one in options.what if one not in folders)
        raise ValueError(f"{folders[0]!r} is a folder of a result and {stack!r} is not: give stacks or results, not both")
    if folders:
        _refuse(options, ("dim", *OF_STACKS, "paper", "out"), f"is about stacks; {folders[0]!r} is a folder of a result")
        return _results(options)
    if not options.what:
        _refuse(options, OF_STACKS, "is about stacks, and --paper alone has its own formulas and lengths: give a stack, or leave it out")
    return _stacks(options)


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        given = getattr(options, name)
        if given is not None and given is not False:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def _results(options: argparse.Namespace) -> int:
    import json

    from tokmix.study.cost.runs import results
    from tokmix.study.cost.show import result_table

    found = [one.record() for path in options.what for one in results(path)]
    print(json.dumps({"results": found}, indent=1) if options.json else result_table(found))
    return 0


def _stacks(options: argparse.Namespace) -> int:
    import json

    from tokmix.study.cost import counter, paper, show, stacks

    if options.out is not None:
        from tokmix.show.plots import check_picture

        check_picture(options.out)
    dim, vocab, farthest = (
        default if given is None else given for given, default in ((options.dim, DIM), (options.vocab, VOCAB), (options.farthest, FARTHEST))
    )
    width = "auto" if options.feed_forward is None else options.feed_forward
    shape = stacks.Shape(dim, vocab, width, options.causal)
    lengths = _lengths(options.lengths)
    priced = [stacks.Priced(_stack(one), lengths, shape, farthest) for one in options.what]
    found: dict[str, Any] = {"stacks": [one.record() for one in priced]}
    parts = [show.stack_tables(one) for one in priced]
    different = False
    if options.check:
        for one, record in zip(priced, found["stacks"], strict=True):
            checks = counter.check_all(one.name, one.model, lengths)
            record["check"] = [check.record() for check in checks]
            parts.append(show.check_table(one.name, checks))
            different |= not all(check.equal for check in checks)
    if pairs := stacks.pairs(priced, farthest):
        found["crossings"] = [pair.record() for pair in pairs]
        parts.append(show.pair_lines(pairs))
    if options.paper:
        found["paper"] = paper.table(paper.Sizes(dim, 2 * dim))
        parts.append(show.paper_table(found["paper"]))
    if options.out is not None:
        parts.append(f"picture {_draw(options.out, priced, found)}")
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(parts))
    return 1 if different else 0


def _stack(text: str) -> str:
    """What is neither a stack nor a folder of a result should be told apart from a misspelt mixer."""
    from tokmix.core import stack

    if text.strip() and is_there(text) and not reads_as_stack(text):
        raise ValueError(f"{text!r} is there, but is neither a run, model, tune or compare folder that has ended nor a stack")
    try:
        stack.parse(text)
    except ValueError as error:
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
    from tokmix.study.cost import show

    curves: dict[str, Any] = {}
    for one in priced:
        curves[one.name] = (one.lengths, [sum(cost.matmul for cost in costs) for costs in zip(*one.layers, strict=True)])
    title = "forward pass of all layers, matrix products"
    if not priced:
        known, title = found["paper"], "one token-mixing layer, by the HyperMixer paper's formulas"
        names = {"hypermixing": "HyperMixing", "attention_printed": "attention, printed", "attention_corrected": "attention, corrected"}
        curves = {names[name]: (known["lengths"], flops) for name, flops in known["flops"].items()}
    return show.draw(path, curves, title)
