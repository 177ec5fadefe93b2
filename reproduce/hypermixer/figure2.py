"""Figure 2: time and floating-point operations of one token-mixing layer against the number of tokens, HyperMixing against attention.

Operations in three ways: the paper's formula, the formula with its slips corrected (cost/paper.py), and ours from torch's counter, where
HyperMixing multiplies in whichever order takes fewer. Time is that of one forward pass of one sequence.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduce import draw, page, results
from reproduce.claims import Verdict, record
from reproduce.hypermixer import paper
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from tokmix.study.cost import paper as formulas

MIXERS = {"hypermixing": "hypermixing(norm='none')", "attention": "attention"}
TITLES = {"hypermixing": "HyperMixing", "attention": "attention"}
PLACES = {"cpu": "CPU", "gpu": "GPU"}
SIZES = formulas.Sizes()
QUICK = (64, 125)


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    lengths = list(QUICK if quick else paper.FIGURE_2_LENGTHS)
    made = {"mixers": MIXERS, "lengths": lengths, "dim": SIZES.dim, "batch": 1, "precision": "float32"}
    return [Job(place, "timing", {"on": place, **made}) for place in (["cpu"] if quick else PLACES)]


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    return "\n\n".join([
        "Milliseconds of a forward pass of one token-mixing layer (d = 256, d' = 512, four heads of attention, float32), one sequence; "
        "the paper's are of its machine, and of 1,000 passes in seconds, which is the same number.",
        _times(outcomes),
        _machines(content),
        "Operations, in millions: the paper's formulas as printed, corrected, and matrix products of ours by torch's counter.",
        _operations(outcomes),
        _crossings(outcomes),
        "One machine each, so these verdicts have no interval. Ahead by: median over lengths of (attention's time / HyperMixing's) - 1.",
        page.verdict_table(record([faster(outcomes, place) for place in PLACES]), digits=2),
    ])  # fmt: skip


def known(outcomes: Outcomes, place: str, mixer: str, field: str) -> dict[int, Any]:
    """Length -> value."""
    return {run["length"]: run[field] for run in page.runs(outcomes.get(place)) if run["mixer"] == mixer}


def _times(outcomes: Outcomes) -> str:
    rows = []
    for column, length in enumerate(paper.FIGURE_2_LENGTHS):
        cells: list[str | None] = []
        for place in PLACES:
            for mixer in MIXERS:
                us = known(outcomes, place, mixer, "us").get(length)
                cells.append(None if us is None else f"{us / 1000:.3f}")
        rows.append([length, *cells, *(f"{paper.FIGURE_2_TIMES[mixer][column]:.2f}" for mixer in MIXERS)])
    heads = [f"{PLACES[place]}, {TITLES[mixer]}" for place in PLACES for mixer in MIXERS]
    return page.table(["N", *heads, *(f"paper, {TITLES[mixer]}" for mixer in MIXERS)], rows)


def _machines(content: Results) -> str:
    """Which machine measured what."""
    told = []
    for job in content["jobs"]:
        if job["outcome"] is not None and page.runs(job["outcome"]):
            machine = job.get("machine") or {}
            name = machine.get("gpu") if job["key"] == "gpu" else f"{machine.get('cpu')}, {job['outcome'].get('threads')} threads"
            told.append(f"{PLACES[job['key']]}: {name}")
    return f"{'; '.join(told)}." if told else ""


def _operations(outcomes: Outcomes) -> str:
    counted = {
        mixer: {**known(outcomes, "gpu", mixer, "matmul_counted"), **known(outcomes, "cpu", mixer, "matmul_counted")} for mixer in MIXERS
    }
    rows = []
    for length in paper.FIGURE_2_LENGTHS:
        by_formula = [formula(length, SIZES) for formula in FORMULAS.values()]
        cells = [counted[mixer].get(length) for mixer in MIXERS]
        rows.append([length, *(_millions(value) for value in [*by_formula, *cells])])
    return page.table(["N", *FORMULAS, *(f"counted, {TITLES[mixer]}" for mixer in MIXERS)], rows)


FORMULAS: dict[str, Callable[[int, formulas.Sizes], int]] = {
    "HyperMixing, formula": formulas.hypermixing,
    "attention, printed": formulas.attention_printed,
    "attention, corrected": formulas.attention_corrected,
}


def _millions(value: int | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.1f}"


def _crossings(outcomes: Outcomes) -> str:
    """From which length on HyperMixing is cheaper: by formula, and by the clock at the lengths measured."""
    at = formulas.crossings(SIZES)
    told = [f"by the printed formula from N = {at['printed']}", f"by the corrected one from N = {at['corrected']}"]
    for place, title in PLACES.items():
        ours, theirs = (known(outcomes, place, mixer, "us") for mixer in MIXERS)
        lengths = sorted(set(ours) & set(theirs))
        faster = [n for n in lengths if all(ours[m] < theirs[m] for m in lengths if m >= n)]
        if lengths:
            told.append(f"measured on the {title} {f'from N = {faster[0]}' if faster else 'at no length'}")
    return page.listed("In the paper, HyperMixing is faster than attention at every length. Here it costs less:", told)


def faster(outcomes: Outcomes, place: str) -> Verdict:
    says = f"{PLACES[place]}: HyperMixing is faster than attention at every length"
    ours, theirs = (known(outcomes, place, mixer, "us") for mixer in MIXERS)
    ratios = [theirs[n] / ours[n] for n in sorted(set(ours) & set(theirs))]
    if not ratios:
        return Verdict(says, page.NOT_RUN)
    return Verdict(says, "holds" if min(ratios) > 1 else "does not hold", statistics.median(ratios) - 1)


def figures(content: Results, folder: Path) -> list[Path]:
    outcomes, shown = results.outcomes(content), []
    for place, title in PLACES.items():
        curves = []
        for mixer in MIXERS:
            times = known(outcomes, place, mixer, "us")
            if times:
                curves.append(draw.Curve(TITLES[mixer], sorted(times), [times[n] / 1000 for n in sorted(times)]))
        if curves:
            if place == "gpu":
                curves += [draw.Curve(TITLES[m], paper.FIGURE_2_LENGTHS, paper.FIGURE_2_TIMES[m], dashed=True) for m in MIXERS]
            shown.append(draw.Panel(curves, "tokens", "milliseconds", f"one layer, {title}", log_x=True, log_y=True))
    return [draw.panels(folder / "figure2.svg", shown, columns=2)] if shown else []


ITEM = Item("hypermixer", "figure2", "Figure 2: time and operations of a layer against length (give --workers 1)", jobs, tables, figures)
