"""Figure 3: HyperMixer against the Transformer with less and less training data. Rates and epochs are those that Table 1's search found
with all of it; a small part is seen more often, so that a model gets enough steps to learn at all (the paper does not say what it did)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from reproduce import draw, page, results
from reproduce.claims import Claim, Run, by_seed
from reproduce.hypermixer import paper, recipe
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

TASKS = tuple(paper.FIGURE_3)
PAIR = ("hypermixer", "transformer")
SEEDS = 3  # with less than all of the data; Table 1's seeds with all of it
MOST = 5  # times as many epochs as with all of the data


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for task in ("snli",) if quick else TASKS:
        for variant in PAIR:
            found += curve(task, variant, quick, outcomes)
    return found


def curve(task: str, variant: str, quick: bool, outcomes: Outcomes) -> list[Job]:
    """A search and a point with all of the data, both Table 1's own; then the smaller parts."""
    found, choice = recipe.looked(task, variant, quick, outcomes)
    if choice is None:
        return found
    found.append(recipe.seeds(task, variant, choice, quick))
    for fraction in (0.5,) if quick else paper.FRACTIONS[:-1]:
        epochs = round(choice.epochs * min(1 / fraction, MOST))
        part = recipe.seeds(task, variant, choice, quick, SEEDS, fraction=fraction, epochs=epochs)
        found.append(Job(key(task, variant, fraction), part.kind, part.spec, part.weight))
    return found


def key(task: str, variant: str, fraction: float) -> str:
    return f"{task}-{variant}-seeds" if fraction == 1 else f"{task}-{variant}-part{round(100 * fraction):03d}"


def point(outcomes: Outcomes, task: str, variant: str, fraction: float) -> tuple[list[Run], int | None]:
    """Runs, and how many rows they learned from."""
    outcome = outcomes.get(key(task, variant, fraction))
    return page.runs(outcome), outcome["rows"]["train"] if outcome and "rows" in outcome else None


def gain(outcomes: Outcomes, task: str, fraction: float) -> float | None:
    """In % of the Transformer's accuracy."""
    ours, theirs = (page.scores(point(outcomes, task, variant, fraction)[0]) for variant in PAIR)
    return 100 * (statistics.fmean(ours) / statistics.fmean(theirs) - 1) if ours and theirs else None


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rows = []
    for task in TASKS:
        for place, fraction in enumerate(paper.FRACTIONS):
            (hyper, count), (transformer, _) = (point(outcomes, task, variant, fraction) for variant in PAIR)
            found = gain(outcomes, task, fraction)
            cells = [page.cell(runs, scale=100) for runs in (hyper, transformer)]
            ours = None if count is None else f"{count:,} ({100 * count / paper.TRAIN_ROWS[task]:.1f} %)"
            theirs = f"{fraction * paper.TRAIN_ROWS[task]:,.0f}"
            shown = None if found is None else f"{found:+.1f} %"
            rows.append([paper.TITLES[task], f"{100 * fraction:g} %", ours, *cells, shown, theirs, f"{paper.FIGURE_3[task][place]:+.1f} %"])
    heads = ["task", "share", "rows, ours (of all there are)", "HyperMixer", "Transformer", "gain", "rows, paper", "gain, paper"]
    return "\n\n".join([
        "Accuracy on validation data in %, and HyperMixer's gain in % of the Transformer's. We have a part of each data set, so our 100 % "
        "compares with the smallest parts of the paper: the figure has the rows themselves along its axis. "
        f"{SEEDS} seeds, with all rows the {len(recipe.SEEDS)} of Table 1.",
        page.table(heads, rows),
        _trend(outcomes),
        f"In points of accuracy, by seed: the lead with {100 * paper.FRACTIONS[0]:g} % of our rows minus the lead with all of them.",
        page.claims_table([scarce(outcomes, task) for task in TASKS], scale=100),
    ])  # fmt: skip


def _trend(outcomes: Outcomes) -> str:
    """The paper's claim: the fewer data, the larger the gain."""
    told = []
    for task in TASKS:
        gains = [found for fraction in paper.FRACTIONS if (found := gain(outcomes, task, fraction)) is not None]
        if len(gains) < len(paper.FRACTIONS):
            told.append(f"{paper.TITLES[task]}: {page.NOT_RUN}")
            continue
        word = "larger" if gains[0] > gains[-1] else "not larger"
        told.append(f"{paper.TITLES[task]}: {word} with few rows ({gains[0]:+.1f} %) than with all ({gains[-1]:+.1f} %)")
    intro = f"The paper claims that HyperMixer gains most where data is scarce. Our gains with {100 * paper.FRACTIONS[0]:g} % of the rows:"
    return page.listed(intro, told)


def leads(outcomes: Outcomes, task: str, fraction: float) -> list[Run]:
    """HyperMixer's accuracy minus the Transformer's, seed by seed."""
    ours, theirs = (by_seed(point(outcomes, task, variant, fraction)[0]) for variant in PAIR)
    return [{"seed": seed, "score": ours[seed]["score"] - theirs[seed]["score"]} for seed in sorted(set(ours) & set(theirs))]


def scarce(outcomes: Outcomes, task: str) -> Claim:
    says = f"{paper.TITLES[task]}: the lead is larger with {100 * paper.FRACTIONS[0]:g} % of the rows than with all"
    return Claim(says, leads(outcomes, task, paper.FRACTIONS[0]), leads(outcomes, task, 1))


def figures(content: Results, folder: Path) -> list[Path]:
    outcomes, panels = results.outcomes(content), []
    for task in TASKS:
        known = [(point(outcomes, task, "hypermixer", fraction)[1], gain(outcomes, task, fraction)) for fraction in paper.FRACTIONS]
        there = [(rows, found) for rows, found in known if rows is not None and found is not None]
        theirs = [fraction * paper.TRAIN_ROWS[task] for fraction in paper.FRACTIONS]
        curves = [draw.Curve("gain over the Transformer", theirs, paper.FIGURE_3[task], dashed=True), *_ours(there)]
        panels.append(draw.Panel(curves, "training rows", "gain, %", paper.TITLES[task], log_x=True))
    return [draw.panels(folder / "figure3.svg", panels)] if any(len(panel.curves) > 1 for panel in panels) else []


def _ours(points: Sequence[tuple[int, float]]) -> list[draw.Curve]:
    return [draw.Curve("gain over the Transformer", [x for x, _ in points], [y for _, y in points])] if points else []


ITEM = Item("hypermixer", "figure3", "Figure 3: 5 to 100 % of the training data", jobs, tables, figures)
