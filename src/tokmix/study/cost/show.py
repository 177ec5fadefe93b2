"""Costs as text tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokmix.core.mixer import Cost
from tokmix.show.text import short
from tokmix.study.cost import paper
from tokmix.study.cost.counter import Check
from tokmix.study.cost.crossing import sentence
from tokmix.study.cost.runs import Total
from tokmix.study.cost.stacks import Pair, Priced
from tokmix.study.summary import table

Row = tuple[str, str, list[int]]  # layer, mixer, FLOPs by length


def stack_tables(priced: Priced) -> str:
    """FLOPs of one example, then of one token, by layer and length."""
    config = priced.config
    way = "causal" if config.causal else "bidirectional"
    head = f"{priced.name}: width {config.dim}, feed-forward {config.feed_forward}, {way}, vocabulary {config.vocab:,}"
    example, token = ["matrix products, forward, FLOPs an example"], ["FLOPs a token"]
    each: list[Row] = [(group.places, group.mixer, [cost.matmul for cost in group.each]) for group in priced.groups]
    rows = [*each, ("output", "", [cost.matmul for cost in priced.output])]
    rows.append(("all", "", [cost.matmul for cost in priced.total]))
    rows.append(("all", "forward and backward", [cost.training for cost in priced.total]))
    rows.append(("all", "element by element, about", [cost.pointwise for cost in priced.total]))
    example.append(_by_length(priced.lengths, rows, per_token=False))
    token.append(_by_length(priced.lengths, rows, per_token=True))
    notes = _notes(priced.total[-1], priced.lengths[-1])
    return "\n".join([head, *example, "", *token, *notes])


def _by_length(lengths: Sequence[int], rows: Sequence[Row], per_token: bool) -> str:
    shown = [["layer", "mixer", *(f"{n:,}" for n in lengths)]]
    for place, mixer, values in rows:
        shown.append([place, mixer, *(short(v / n if per_token else v) for v, n in zip(values, lengths, strict=True))])
    return table(shown)


def _notes(cost: Cost, length: int) -> list[str]:
    notes = []
    if cost.causal != cost.matmul:
        assert cost.causal is not None
        notes.append(f"without the masked half of causal scores: {short(cost.causal)} at {length:,} tokens")
    if cost.recomputed:
        notes.append(f"of forward and backward, {short(cost.recomputed)} at {length:,} tokens are computed again in the backward pass")
    return notes


def check_table(name: str, checks: Sequence[Check]) -> str:
    rows = [["length", "forward, formula", "counter", "with backward, formula", "counter", "equal"]]
    for one in checks:
        numbers = (one.length, one.forward, one.forward_counted, one.training, one.training_counted)
        rows.append([*(f"{number:,}" for number in numbers), "yes" if one.equal else "NO"])
    return f"{name}: matrix products by formula and by torch's operation counter\n{table(rows)}"


def pair_lines(pairs: Sequence[Pair]) -> str:
    lines = []
    for pair in pairs:
        lines.append(f"matrix products: {sentence(pair.a, pair.b, pair.matmul)}")
        lines.append(f"with the rest, about: {sentence(pair.a, pair.b, pair.with_pointwise)}")
    farthest = pairs[0].matmul.farthest
    return "\n".join([f"crossing, every length from 1 to {farthest:,} looked at (all layers, without the output):", *lines])


def paper_table(found: paper.PaperTable) -> str:
    flops, figure, starts = found.flops, found.figure_2, found.hypermixing_costs_less_from
    rows = [["N", "HyperMixing", "attention, printed", "attention, corrected", "Figure 2: HyperMixer", "Figure 2: Transformer"]]
    for place, n in enumerate(found.lengths):
        numbers = [f"{flops[name][place]:,}" for name in ("hypermixing", "attention_printed", "attention_corrected")]
        rows.append([f"{n:,}", *numbers, *(f"{figure[name][place]:.3f}" for name in ("hypermixing", "attention_printed"))])
    lines = [
        f"the HyperMixer paper's formulas, one token-mixing layer, d = {found.dim}, d' = {found.hidden}, attention of"
        f" {found.heads} heads, HyperMixing of one, tied, textbook form",
        "HyperMixing           d (4 N d' + 9 d') + N (2 d² + 2 d d' + 9 d)",
        "attention, printed    6 h (d/h)² + 2 h (d/h) N² + 3 N + 2 d N²",
        "attention, corrected  8 N d² + 4 d N² + 4 h N²",
        table(rows),
        "Figure 2: the points as drawn, which are the printed formulas over 1e7 (its axis is off by ten)",
    ]
    for name, start in starts.items():
        met = f"from N = {start:,} on" if start else f"nowhere up to N = {paper.FARTHEST:,}"
        lines.append(f"HyperMixing costs less than attention, as {name}: {met}")
    return "\n".join(lines)


def result_table(results: Sequence[Total]) -> str:
    from tokmix.training.report import clock

    rows = [["result", "E: FLOPs an example", "D: examples", "H: trials", "Cost(R) = E·D·H", "time", "peak memory", "energy"]]
    for one in results:
        peak, joules = one.peak_memory_bytes, one.energy_joules
        least = "at least " if one.without_record else ""
        rows.append(
            [
                one.result, f"{round(one.flops_training):,}", f"{round(one.examples):,}", str(one.trials),
                f"{least}{one.flops:.3e}", clock(one.seconds),
                "not measured" if peak is None else f"{peak / 2**20:,.0f} MiB ({one.peak_memory_of})",
                "not measured" if joules is None else f"{joules:,.1f} J ({one.energy_source})",
            ]
        )  # fmt: skip
    lines = [
        table(rows),
        "E: matrix products, forward and backward, of the mean example read; D: examples read, repeats counted; H: runs it took",
    ]
    lines += [
        f"{one.result}: {one.without_record} of {one.trials} left no record of their cost and are not in the sums"
        for one in results
        if one.without_record
    ]
    return "\n".join(lines)


def draw(path: str | Path, curves: dict[str, tuple[Sequence[int], Sequence[int]]], title: str) -> Path:
    """Plot FLOPs against length, both on log scales."""
    from tokmix.show.plots import COLOURS, GREY, INK, figure

    page = figure(7, 4.6)
    axes = page.add_subplot()
    for place, (name, (lengths, flops)) in enumerate(curves.items()):
        style = ("-", "--", ":", "-.")[place // len(COLOURS) % 4]
        axes.plot(lengths, flops, style, color=COLOURS[place % len(COLOURS)], marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.set_xlabel("tokens", color=INK)
    axes.set_ylabel("FLOPs an example", color=INK)
    axes.set_title(title, color=INK, fontsize=9)
    axes.tick_params(colors=GREY)
    axes.grid(visible=True, color=GREY, alpha=0.2)
    axes.legend(frameon=False, fontsize=8)
    page.tight_layout()
    page.savefig(path)
    return Path(path)
