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
from reproduce.claims import Verdict, by_interval, record
from reproduce.hypermixer import figure3, figure4, paper
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from tokmix.core.optional import np
from tokmix.study import expected_performance

PAIR = figure3.PAIR
DRAWS = 500  # of the bootstrap
FACTORS = (
    "E: operations of training on one example",
    "D: rows that each model needs for the accuracy R that both reach with all of our data",
    "H: random trials that each is expected to need for an accuracy that both reach in 20",
)


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
        page.listed("Cost(R) = E · D · H. A ratio below 1 is in favour of HyperMixer.", FACTORS),
        f"The paper argues that savings in data and in trials multiply. This was not measured. {_epochs(content)}".strip(),
        shown,
        f"Geometric mean of the five: {page.NOT_RUN if mean is None else f'**{mean:.2f}**'}.",
        "As a claim, on the logarithm of that mean: ahead by 1 is a factor of 2.7. The interval is a paired bootstrap over seeds (D) and "
        "trials (H); it does not vary the tasks.",
        page.verdict_table(record([cheaper(outcomes)]), digits=2),
    ])  # fmt: skip


def cheaper(outcomes: Outcomes) -> Verdict:
    """The same cost from seeds and trials drawn again, both models' in pairs."""
    says = "Cost(R) is lower for HyperMixer than for the Transformer, geometric mean of five tasks"
    tried = {(task, one): np.array(figure4.scores(outcomes, task, one)) for task in paper.TASKS for one in PAIR}
    curves = {(task, one): _curve(outcomes, task, one) for task in figure3.TASKS for one in PAIR}
    each = {task: [operations(outcomes, task, one) for one in PAIR] for task in paper.TASKS}
    if any(not len(known) for known in tried.values()) or any(curve is None for curve in curves.values()):
        return Verdict(says, page.NOT_RUN)
    constant = statistics.fmean(math.log(ours / theirs) for ours, theirs in each.values() if ours and theirs)
    chance = np.random.default_rng(figure4.DRAWS)

    def log_ratio(again: bool) -> float:
        total = 0.0
        for task in paper.TASKS:
            count = len(tried[task, PAIR[0]])
            picked = chance.integers(count, size=count) if again else np.arange(count)
            best = [expected_performance.with_replacement(tried[task, one][picked].tolist()).mean for one in PAIR]
            first, second = (next(k for k, value in enumerate(curve, 1) if value >= min(best[0][-1], best[1][-1])) for curve in best)
            total += math.log(first / second)
            if task in figure3.TASKS:
                points = [_drawn(curves[task, one] or [], chance if again else None) for one in PAIR]
                target = min(curve[-1][1] for curve in points)
                rows = [rows_to_reach(curve, target) for curve in points]
                total += math.log((rows[0] or 1) / (rows[1] or 1))
        return constant + total / len(paper.TASKS)

    drawn = [log_ratio(again=True) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return by_interval(says, -log_ratio(again=False), (-float(high), -float(low)))


def _curve(outcomes: Outcomes, task: str, variant: str) -> list[tuple[int, list[float]]] | None:
    """[(rows, score of each seed)]; None where a point is missing."""
    known = [figure3.point(outcomes, task, variant, fraction) for fraction in paper.FRACTIONS]
    points = [(rows, scores) for runs, rows in known if rows and (scores := page.scores(runs))]
    return points if len(points) == len(known) else None


def _drawn(curve: Sequence[tuple[int, list[float]]], chance: np.random.Generator | None) -> list[tuple[int, float]]:
    """Mean accuracies, of seeds drawn again where there is a generator."""
    return [
        (rows, float(np.mean(scores if chance is None else chance.choice(np.array(scores), size=len(scores))))) for rows, scores in curve
    ]


def _epochs(content: Results) -> str:
    """E counts a row once, however often it is read: where D's runs of the two models had other numbers of epochs, that is said."""
    of = {job["key"]: job["spec"]["epochs"] for job in content["jobs"]}
    told = []
    for task in figure3.TASKS:
        ours, theirs = (of.get(figure3.key(task, variant, 1)) for variant in PAIR)
        if ours is not None and theirs is not None and ours != theirs:
            told.append(f"{paper.TITLES[task]} ({ours} and {theirs})")
    differ = f"Epochs are not counted. Where D is measured, the two models have different numbers of them on {', '.join(told)}."
    return differ if told else ""


def _pair(found: tuple[float, float, float] | None) -> str | None:
    if found is None:
        return None
    target, ours, theirs = found
    return f"{ours:,.0f} / {theirs:,.0f} (R = {target:.1f})"


ITEM = Item("hypermixer", "cost", "Cost(R) = E D H to reach an accuracy, from Figures 3 and 4", jobs, tables)
