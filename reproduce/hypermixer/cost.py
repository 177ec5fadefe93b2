"""Cost(R) = E · D · H (Schwartz et al. 2020), the paper's thesis in one number: what HyperMixer costs, as a share of what the Transformer
costs, to reach an accuracy that both reach.

    E   operations to train on one example once: matrix products, forward and backward, at the examples' own lengths
    D   training rows to reach R, from the curves of Figure 3. R: the lower of the two accuracies with all rows; rows between two
        measured points are interpolated in their logarithm
    H   random trials to be expected to reach R, from Figure 4. R: the lower of the two expectations after all trials

Savings in data and in trials are measured apart; that they multiply is the paper's argument and not a measurement. No runs of its own: its
jobs are those of the two figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from reproduce import page, results
from reproduce.hypermixer import figure3, figure4, paper
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

PAIR = figure3.PAIR


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = {job.key: job for job in [*figure3.jobs(quick, outcomes), *figure4.jobs(quick, outcomes)]}
    return list(found.values())


def operations(outcomes: Outcomes, task: str, variant: str) -> float | None:
    """E."""
    known = [outcomes.get(key, {}) for key in (figure3.key(task, variant, 1), figure4.key(task, variant, 0))]
    return next((outcome["flops_row"] for outcome in known if "flops_row" in outcome), None)


def rows_to_reach(points: Sequence[tuple[int, float]], target: float) -> float | None:
    """The fewest rows at which a curve (rows, accuracy) gets to the target; None where it never does."""
    before: tuple[int, float] | None = None
    for rows, accuracy in sorted(points):
        if accuracy >= target:
            if before is None:
                return float(rows)
            share = (target - before[1]) / (accuracy - before[1])
            return math.exp(math.log(before[0]) + share * (math.log(rows) - math.log(before[0])))
        before = (rows, accuracy)
    return None


def data(outcomes: Outcomes, task: str) -> tuple[float, float, float] | None:
    """(R, D of HyperMixer, D of the Transformer)"""
    curves = []
    for variant in PAIR:
        known = [figure3.point(outcomes, task, variant, fraction) for fraction in paper.FRACTIONS]
        points = [(rows, 100 * statistics.fmean(scores)) for runs, rows in known if rows and (scores := page.scores(runs))]
        if len(points) < len(paper.FRACTIONS):
            return None
        curves.append(points)
    target = min(points[-1][1] for points in curves)
    needed = [rows_to_reach(points, target) for points in curves]
    assert needed[0] is not None and needed[1] is not None
    return target, needed[0], needed[1]


def trials(outcomes: Outcomes, task: str) -> tuple[float, int, int] | None:
    """(R, H of HyperMixer, H of the Transformer)"""
    curves = [figure4.expected(outcomes, task, variant) for variant in PAIR]
    if not all(curves):
        return None
    target = min(curve[-1] for curve in curves)
    first, second = (next(k for k, value in enumerate(curve, 1) if value >= target) for curve in curves)
    return target, first, second


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rows, ratios = [], []
    for task in paper.TASKS:
        ours, theirs = (operations(outcomes, task, variant) for variant in PAIR)
        e = ours / theirs if ours and theirs else None
        d, h = data(outcomes, task), trials(outcomes, task)
        cells = [None if e is None else f"{e:.2f}", _pair(d), _pair(h)]
        parts = [e, None if d is None else d[1] / d[2], None if h is None else h[1] / h[2]]
        whole = math.prod(part for part in parts if part is not None) if None not in parts else None
        if task not in paper.FIGURE_3:
            cells[1] = "as many: not in Figure 3"
            whole = e * h[1] / h[2] if e and h else None
        if whole is not None:
            ratios.append(whole)
        rows.append([paper.TITLES[task], *cells, None if whole is None else f"**{whole:.2f}**"])
    heads = ["task", "E, HyperMixer / Transformer", "D: rows to reach R", "H: trials to reach R", "Cost(R), HyperMixer / Transformer"]
    shown = page.table(heads, rows)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) if len(ratios) == len(paper.TASKS) else None
    return "\n\n".join([
        "Cost(R) = E · D · H. E: operations of training on one example; D: rows that each model needs for the accuracy R that both reach "
        "with all of our data; H: random trials that each is expected to need for an accuracy that both reach in 20. A ratio below 1 is "
        "in favour of HyperMixer. That savings in data and in trials multiply is the paper's argument, not a measurement."
        f"{_epochs(content)}",
        shown,
        f"Geometric mean of the five: {page.NOT_RUN if mean is None else f'**{mean:.2f}**'}.",
    ])  # fmt: skip


def _epochs(content: Results) -> str:
    """E counts a row once, however often it is read: where D's runs of the two models had other numbers of epochs, that is said."""
    of = {job["key"]: job["spec"]["epochs"] for job in content["jobs"]}
    told = []
    for task in figure3.TASKS:
        ours, theirs = (of.get(figure3.key(task, variant, 1)) for variant in PAIR)
        if ours is not None and theirs is not None and ours != theirs:
            told.append(f"{paper.TITLES[task]} ({ours} and {theirs})")
    return f" Epochs are not counted; where D is measured the two models have other numbers of them on {', '.join(told)}." if told else ""


def _pair(found: tuple[float, float, float] | None) -> str | None:
    if found is None:
        return None
    target, ours, theirs = found
    return f"{ours:,.0f} / {theirs:,.0f} (R = {target:.1f})"


ITEM = Item("hypermixer", "cost", "Cost(R) = E D H to reach an accuracy, from Figures 3 and 4", jobs, tables)
