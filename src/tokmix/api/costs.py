"""tokmix.cost: the cost of stacks by length and where two cross, or the cost of runs on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from tokmix.core.checks import is_there
from tokmix.runs.files import JsonObject

if TYPE_CHECKING:
    from tokmix.study.cost.paper import PaperTable
    from tokmix.study.cost.stacks import Priced

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
DIM, VOCAB, FARTHEST = 256, 30522, 32768


@dataclass(frozen=True)
class Costs:
    record: JsonObject  # {"stacks": [...], "crossings": [...]} or {"results": [...]}
    text: str  # the same as text tables
    equal: bool = True  # with check=True: whether the formulas agree with torch's operation counter

    def __str__(self) -> str:
        return self.text


def cost(
    *what: str | Path,
    lengths: Sequence[int] | None = None,
    dim: int | None = None,
    vocab: int | None = None,
    feed_forward: int | None = None,
    causal: bool = False,
    check: bool = False,
    paper: bool = False,
    farthest: int | None = None,
    out: str | Path | None = None,
    imports: Sequence[str | Path] = (),
) -> Costs:
    """what: stacks such as "hsm*3, attention(heads=8)", or folders of a run, a model, a tuning or a comparison.
    The other arguments are about stacks; see `tokmix cost --help`.

    print(tokmix.cost("hsm*3", "attention*3", lengths=[512, 4096]))
    """
    from tokmix.study.cost.runs import is_result
    from tokmix.training.imports import import_files

    for one in what:
        if not isinstance(one, (str, Path)):
            raise ValueError(
                f"{str(one)[:80]!r} is of type {type(one).__name__}; give stacks and folders one by one: cost('hsm*2', 'attention*2')"
            )
    import_files(imports)
    folders = [one for one in what if is_result(one)]
    if not what and not paper:
        raise ValueError("nothing to cost: give one or more stacks, or run folders, or --paper")
    if folders and len(folders) < len(what):
        stack = next(one for one in what if one not in folders)
        raise ValueError(f"{str(folders[0])!r} is a folder of a result and {str(stack)!r} is not: give stacks or results, not both")
    of_stacks = {
        "--lengths": lengths, "--vocab": vocab, "--feed-forward": feed_forward, "--causal": causal or None, "--check": check or None,
        "--farthest": farthest,
    }  # fmt: skip
    if folders:
        others = {"--dim": dim, **of_stacks, "--paper": paper or None, "--out": out}
        _refuse(others, f"is about stacks; {str(folders[0])!r} is a folder of a result")
        return _results(folders)
    if not what:
        _refuse(of_stacks, "is about stacks, and --paper alone has its own formulas and lengths: give a stack, or leave it out")
    return _stacks([_stack(str(one)) for one in what], _lengths(lengths), dim, vocab, feed_forward, causal, check, paper, farthest, out)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} {why}")


def _results(folders: Sequence[str | Path]) -> Costs:
    from tokmix.study.cost.runs import results
    from tokmix.study.cost.show import result_table

    found = [one.total() for path in folders for one in results(path)]
    return Costs({"results": [asdict(one) for one in found]}, result_table(found))


def _stacks(
    names: Sequence[str], lengths: list[int], dim: int | None, vocab: int | None, feed_forward: int | None, causal: bool, check: bool,
    with_paper: bool, farthest: int | None, out: str | Path | None,
) -> Costs:  # fmt: skip
    from tokmix.show.plots import check_picture
    from tokmix.study.cost import counter, paper, show, stacks

    if out is not None:
        check_picture(out)
    dim, vocab, farthest = (default if given is None else given for given, default in ((dim, DIM), (vocab, VOCAB), (farthest, FARTHEST)))
    shape = stacks.Shape(dim, vocab, "auto" if feed_forward is None else feed_forward, causal)
    priced = [stacks.Priced(one, lengths, shape, farthest) for one in names]
    found: JsonObject = {"stacks": [one.record() for one in priced]}
    printed: PaperTable | None = None
    parts, equal = [show.stack_tables(one) for one in priced], True
    if check:
        for one, record in zip(priced, found["stacks"], strict=True):
            checks = counter.check_all(one.name, one.model, lengths)
            record["check"] = [result.record() for result in checks]
            parts.append(show.check_table(one.name, checks))
            equal &= all(result.equal for result in checks)
    if pairs := stacks.pairs(priced, farthest):
        found["crossings"] = [pair.record() for pair in pairs]
        parts.append(show.pair_lines(pairs))
    if with_paper:
        printed = paper.table(paper.Sizes(dim, 2 * dim))
        found["paper"] = asdict(printed)
        parts.append(show.paper_table(printed))
    if out is not None:
        parts.append(f"picture {_draw(out, priced, printed)}")
    return Costs(found, "\n\n".join(parts), equal)


def _stack(text: str) -> str:
    """A stack as given. A path that is no folder of a result gets its own message, not that of a misspelt mixer."""
    from tokmix.core import stack
    from tokmix.study.summary import reads_as_stack

    if text.strip() and is_there(text) and not reads_as_stack(text):
        raise ValueError(f"{text!r} is there, but is neither a run, model, tune or compare folder that has ended nor a stack")
    try:
        stack.parse(text)
    except ValueError as error:
        if "/" in text:
            raise ValueError(f"{text!r} is neither a folder nor a stack: {error}") from None
        raise
    return text


def _lengths(given: Sequence[int] | None) -> list[int]:
    if not isinstance(given, (Iterable, NoneType)) or isinstance(given, str):
        raise ValueError(f"lengths={given!r} should be a list of whole numbers")
    found = list(LENGTHS if given is None else given)
    if not found or not all(isinstance(length, int) and length >= 1 for length in found):
        raise ValueError(f"--lengths {','.join(map(str, found))!r}: a length is at least 1, and a whole number")
    return sorted(set(found))


def _draw(path: str | Path, priced: Sequence[Priced], printed: PaperTable | None) -> Path:
    from tokmix.study.cost import show

    curves: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
    for one in priced:
        curves[one.name] = (one.lengths, [sum(cost.matmul for cost in costs) for costs in zip(*one.layers, strict=True)])
    title = "forward pass of all layers, matrix products"
    if not priced and printed is not None:
        title = "one token-mixing layer, by the HyperMixer paper's formulas"
        names = {"hypermixing": "HyperMixing", "attention_printed": "attention, printed", "attention_corrected": "attention, corrected"}
        curves = {names[name]: (printed.lengths, flops) for name, flops in printed.flops.items()}
    return Path(show.draw(path, curves, title))
