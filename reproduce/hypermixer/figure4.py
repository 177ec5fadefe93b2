"""Figure 4: how good the best of k random trials can be expected to be. A trial draws log10 of the learning rate from U(-8, -1) and
dropout from U(0, 0.5), as in the paper; both models get the same draws. Trials train a third of Table 1's epochs, as a search does."""

from __future__ import annotations

import random
from pathlib import Path

from reproduce import draw, page, results
from reproduce.claims import Verdict, by_interval, record
from reproduce.hypermixer import paper, recipe
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from tokmix.core.optional import np
from tokmix.study import expected_performance
from tokmix.study.statistics import RESAMPLES

PAIR = ("hypermixer", "transformer")
TRIALS, GROUP = 20, 5  # trials side by side
DRAWS = 4  # the seed of the draws


def trials(count: int) -> list[dict[str, float]]:
    chance = random.Random(DRAWS)
    return [{"seed": seed, "lr": 10 ** chance.uniform(-8, -1), "dropout": chance.uniform(0, 0.5)} for seed in range(count)]


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    drawn, group = trials(4 if quick else TRIALS), 2 if quick else GROUP
    for task in recipe.tasks(quick)[:1] if quick else paper.TASKS:
        for variant in PAIR:
            for first in range(0, len(drawn), group):
                short = -(-recipe.TASKS[task].epochs // recipe.SHORTER)
                model = recipe.VARIANTS[variant].model(quick)
                made = recipe.spec(task, model, drawn[first : first + group], quick, epochs=short)
                found.append(recipe.job(key(task, variant, first // group), made))
    return found


def key(task: str, variant: str, part: int) -> str:
    return f"{task}-{variant}-trials{part}"


def scores(outcomes: Outcomes, task: str, variant: str) -> list[float]:
    """Of all trials; a diverged one scores chance. Nothing where some have not been run: an expectation needs them all."""
    found = []
    for part in range(TRIALS // GROUP):
        runs = page.runs(outcomes.get(key(task, variant, part)))
        if not runs:
            return []
        found += [float(run["score"]) for run in runs]
    return found


def expected(outcomes: Outcomes, task: str, variant: str) -> list[float]:
    """The best of 1, 2, ... trials, in %."""
    known = scores(outcomes, task, variant)
    return [100 * mean for mean in expected_performance.with_replacement(known).mean] if known else []


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rows = []
    for task in paper.TASKS:
        ours, theirs = (expected(outcomes, task, variant) for variant in PAIR)
        for place, k in enumerate(paper.TRIALS):
            there = len(ours) >= k and len(theirs) >= k
            cells = (
                [f"{ours[k - 1]:.1f}", f"{theirs[k - 1]:.1f}", f"{100 * (ours[k - 1] / theirs[k - 1] - 1):+.1f} %"] if there else [None] * 3
            )
            rows.append([paper.TITLES[task], k, *cells, f"{paper.FIGURE_4[task][place]:+.1f} %"])
    heads = ["task", "trials", "HyperMixer", "Transformer", "gain", "gain, paper"]
    return "\n\n".join([
        "The accuracy on validation data to be expected from the best of so many random trials, in %, and HyperMixer's gain in % of the "
        "Transformer's.",
        page.table(heads, rows),
        _lost(outcomes),
        _claim(outcomes),
        "The mean gain over those numbers of trials, in points of accuracy. The interval is a paired bootstrap over the trials.",
        page.verdict_table(record([easier(outcomes, task) for task in paper.TASKS]), digits=1),
    ])  # fmt: skip


def _lost(outcomes: Outcomes) -> str:
    """Trials that learned nothing: within half a percent of the commonest class, or diverged."""
    told = []
    for variant in PAIR:
        lost = known = 0
        for task in paper.TASKS:
            for part in range(TRIALS // GROUP):
                outcome = outcomes.get(key(task, variant, part)) or {}
                known += len(page.runs(outcome))
                lost += sum(run["score"] <= outcome["chance"] + 0.005 for run in page.runs(outcome))
        told.append(f"{recipe.VARIANTS[variant].title}: {f'{lost} of {known}' if known else page.NOT_RUN}")
    return page.listed("Trials that learned nothing (at most half a percent better than always naming the most common class):", told)


def _claim(outcomes: Outcomes) -> str:
    told = []
    for task in paper.TASKS:
        ours, theirs = (expected(outcomes, task, variant) for variant in PAIR)
        if not ours or not theirs:
            told.append(f"{paper.TITLES[task]}: {page.NOT_RUN}")
            continue
        ahead = sum(ours[k - 1] > theirs[k - 1] for k in paper.TRIALS)
        told.append(f"{paper.TITLES[task]}: {ahead} of {len(paper.TRIALS)}")
    return page.listed("In the paper, HyperMixer is ahead at every number of trials on every task. Here it is ahead at:", told)


def mean_best(drawn: np.ndarray) -> np.ndarray:
    """Scores of trials [draws, n] -> the expected best of k of them, in %, averaged over the paper's k. [draws]"""
    n = drawn.shape[1]
    at = np.arange(n + 1) / n
    weights = np.mean([np.diff(at**k) for k in paper.TRIALS], axis=0)  # [n] of the sorted scores
    return 100 * np.sort(drawn, axis=1) @ weights


def easier(outcomes: Outcomes, task: str) -> Verdict:
    """Both models get the same draws, so trials are drawn again in pairs."""
    says = f"{paper.TITLES[task]}: HyperMixer is ahead after the same number of random trials"
    ours, theirs = (np.array(scores(outcomes, task, variant)) for variant in PAIR)
    if not len(ours) or not len(theirs):
        return Verdict(says, page.NOT_RUN)
    picked = np.random.default_rng(DRAWS).integers(len(ours), size=(RESAMPLES, len(ours)))
    gain = float((mean_best(ours[None]) - mean_best(theirs[None]))[0])
    low, high = np.quantile(mean_best(ours[picked]) - mean_best(theirs[picked]), [0.025, 0.975])
    return by_interval(says, gain, (float(low), float(high)))


def figures(content: Results, folder: Path) -> list[Path]:
    outcomes, panels = results.outcomes(content), []
    for task in paper.TASKS:
        curves = []
        for variant in PAIR:
            known = expected(outcomes, task, variant)
            if known:
                curves.append(draw.Curve(recipe.VARIANTS[variant].title, range(1, len(known) + 1), known))
        if curves:
            panels.append(draw.Panel(curves, "random trials", "expected accuracy, %", paper.TITLES[task]))
    return [draw.panels(folder / "figure4.svg", panels)] if panels else []


ITEM = Item("hypermixer", "figure4", "Figure 4: expected validation performance from 20 random trials", jobs, tables, figures)
