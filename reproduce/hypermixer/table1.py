"""Table 1: HyperMixer against five other token mixers on five tasks, and two rows of ours: a pre-norm Transformer, since the paper's own
appendix shows its baseline in a worse layout, and HyperMixing with four heads."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduce import draw, page, results
from reproduce.hypermixer import paper, recipe
from reproduce.hypermixer import tables as shown
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

OURS = ("transformer-pre", "hypermixer-4heads")
VARIANTS = (*paper.TABLE_1, *OURS)
OTHERS = tuple(name for name in VARIANTS if name not in ("hypermixer", "hypermixer-4heads"))


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    return recipe.searched(("transformer", "hypermixer") if quick else VARIANTS, quick, outcomes)


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rates = shown.rates(outcomes, VARIANTS, bool(content["quick"]))
    parts = [
        "Accuracy on validation data in %, mean (standard deviation) of our seeds / of the paper's ten.",
        shown.accuracies(outcomes, VARIANTS, _theirs),
        shown.data_note(outcomes),
        "How far HyperMixer is ahead of each other model (negative: behind), and whether the order that the paper's table gives the two "
        "holds. p: paired t over seeds, paired bootstrap over examples, both corrected after Holm over this table.",
        shown.orders(outcomes, OTHERS, _behind),
        _floors(outcomes),
        rates,
        shown.border_note(rates),
        shown.search_table(outcomes, VARIANTS),
        shown.cost_note(content, {title: _belongs(seeds, six) for title, seeds, six in GROUPS}),
    ]
    return "\n\n".join(part for part in parts if part)


GROUPS = (
    ("six models of the paper, seeds", ("seeds",), True),
    ("six models of the paper, search", ("search", "finals"), True),
    ("two models of ours, seeds", ("seeds",), False),
    ("two models of ours, search", ("search", "finals"), False),
)


def _belongs(phases: tuple[str, ...], six: bool) -> Any:
    def belongs(job: Mapping[str, Any]) -> bool:
        _, name = job["key"].split("-", 1)
        name, phase = name.rsplit("-", 1)
        return phase in phases and (name not in OURS) == six

    return belongs


def _theirs(variant: str, place: int) -> str:
    if variant not in paper.TABLE_1:
        return ""
    mean, spread = paper.TABLE_1[variant][place]
    return f"{mean:.1f} ({spread:.1f})"


def _behind(other: str, place: int) -> bool:
    """Of a pre-norm Transformer the paper has no numbers; it is asked the same of as the paper's own."""
    return other in paper.TABLE_1 and paper.TABLE_1[other][place][0] > paper.TABLE_1["hypermixer"][place][0]


def _floors(outcomes: Outcomes) -> str:
    """SST-2 is complete, so there the paper's own numbers can be asked for."""
    told = []
    for variant in ("hypermixer", "transformer"):
        floor = paper.TABLE_1[variant][paper.TASKS.index("sst2")][0]
        scores = page.scores(shown.seed_runs(outcomes, "sst2", variant))
        if not scores:
            told.append(f"{recipe.VARIANTS[variant].title} not run")
            continue
        mean = shown.PERCENT * statistics.fmean(scores)
        word = "at or above" if mean >= floor else "below"
        told.append(f"{recipe.VARIANTS[variant].title} {mean:.1f}, {word} the paper's {floor}")
    return page.listed("SST-2, where we have all of the training data:", told)


def figures(content: Results, folder: Path) -> list[Path]:
    outcomes = results.outcomes(content)
    values: dict[str, list[float | None]] = {}
    spread: dict[str, list[float]] = {}
    for variant in VARIANTS:
        scores = [page.scores(shown.seed_runs(outcomes, task, variant)) for task in paper.TASKS]
        title = recipe.VARIANTS[variant].title
        values[title] = [shown.PERCENT * statistics.fmean(one) if one else None for one in scores]
        spread[title] = [shown.PERCENT * statistics.stdev(one) if len(one) > 1 else 0.0 for one in scores]
    if not any(value is not None for row in values.values() for value in row):
        return []
    dots = draw.Dots([paper.TITLES[task] for task in paper.TASKS], values, "accuracy on validation data, %", spread)
    return [draw.panels(folder / "table1.svg", [dots])]


ITEM = Item("hypermixer", "table1", "Table 1: six models on five tasks, learning rates searched, five seeds", jobs, tables, figures)
