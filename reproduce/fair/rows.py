"""Tables 1 and 5 of HyperMixer again: larger training parts, test sets, a bag of words, rates and dropout searched with three seeds, the
same number of epochs for every model of a task, ten seeds, and positions on and off in the ablations."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from reproduce import page, results
from reproduce.claims import Claim, Run, by_seed, judge
from reproduce.fair import estimate
from reproduce.fair.search import beyond
from reproduce.hypermixer import recipe
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from tokmix.study.statistics import interval

TASKS = {"snli_33": "SNLI, 33 %", "mnli_11": "MNLI, 11 %", "qqp_complete": "QQP", "agnews_28": "AG News, 28 %", "sst2": "SST-2"}
TABLE_1 = ("fnet", "linear", "transformer", "mlpmixer", "gmlp", "hypermixer", "transformer-pre")
TABLE_5 = ("feature-only", "feature-only-positions", "token-only", "shared-vector", "shared-vector-positions", "untied")
VARIANTS = (*TABLE_1, *TABLE_5)
RATES, DROPOUTS = (1e-3, 5e-4, 2.5e-4, 1.25e-4), (0.1, 0.3)
SEARCH, SEEDS = (100, 101, 102), tuple(range(10))
FINALISTS, FARTHEST = 3, 2
PENALTIES = [1e-6, 3e-6, 1e-5, 3e-5]
QUICK_TASKS, QUICK_VARIANTS = ("sst2",), ("transformer", "hypermixer")


class Cell(NamedTuple):
    """What is searched."""

    rate: float
    dropout: float


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for task in QUICK_TASKS if quick else TASKS:
        found.append(_bag(task, quick))
        for variant in QUICK_VARIANTS if quick else VARIANTS:
            looked, cell = searched(task, variant, quick, outcomes)
            found += looked
            if cell is not None:
                found.append(_job(task, variant, "seeds", [(seed, cell) for seed in SEEDS], quick, score="valid", dev=0.0, test=True))
    return found


def _bag(task: str, quick: bool) -> Job:
    spec: dict[str, Any] = {"data": task, "dev": recipe.held_out(task, quick), "limit": recipe.TASKS[task].limit, "penalties": PENALTIES}
    spec |= {"rows": recipe.QUICK["rows"], "penalties": PENALTIES[:2]} if quick else {}
    return Job(f"{task}-bag", "bag", spec, worth=51, seconds=10 + recipe.TASKS[task].rows / 3000)  # most of it on one core


def searched(task: str, variant: str, quick: bool, outcomes: Outcomes) -> tuple[list[Job], Cell | None]:
    """Every cell with one seed, further rates while the best is at a border, then the best cells with two more seeds."""
    rates, dropouts = (RATES[:2], DROPOUTS[:1]) if quick else (RATES, DROPOUTS)
    grid = lambda rates: [(SEARCH[0], Cell(*one)) for one in itertools.product(rates, dropouts)]
    found = [_job(task, variant, "search", grid(rates), quick)]
    while all(job.key in outcomes for job in found):
        known = cells(outcomes, found)
        by_rate = {
            rate: min(-statistics.fmean(known[cell]) for cell in known if cell.rate == rate) for rate in sorted({c.rate for c in known})
        }
        rate = beyond(by_rate, rates, 0 if quick else FARTHEST)
        if rate is None:
            break
        found.append(_job(task, variant, f"rate-{rate:g}", grid([rate]), quick))
    else:
        return found, None
    if quick or not known:
        return found, best(known)
    order = sorted(known, key=lambda cell: (-statistics.fmean(known[cell]), cell.rate))
    found.append(_job(task, variant, "finals", list(itertools.product(SEARCH[1:], order[:FINALISTS])), quick))
    if found[-1].key not in outcomes:
        return found, None
    all_seeds = {cell: scores for cell, scores in cells(outcomes, found).items() if cell in order[:FINALISTS]}
    return found, best(all_seeds)


def cells(outcomes: Outcomes, looked: Sequence[Job]) -> dict[Cell, list[float]]:
    """Accuracy on the rows held out; a run that diverged scores the commonest class."""
    found: dict[Cell, list[float]] = {}
    for job in looked:
        for run in page.runs(outcomes.get(job.key)):
            found.setdefault(Cell(run["lr"], run["dropout"]), []).append(run["score"])
    return found


def best(known: Mapping[Cell, Sequence[float]]) -> Cell | None:
    """By the mean; the smaller rate where two are equal."""
    return max(known, key=lambda cell: (statistics.fmean(known[cell]), -cell.rate), default=None)


def _job(task: str, variant: str, phase: str, members: Sequence[tuple[int, Cell]], quick: bool, **others: Any) -> Job:
    told = [{"seed": seed, "lr": cell.rate, "dropout": cell.dropout} for seed, cell in (members[:2] if quick else members)]
    given = {"score": "dev", "dev": recipe.held_out(task, quick)} | others
    job = recipe.job(f"{task}-{variant}-{phase}", recipe.spec(task, recipe.VARIANTS[variant].model(quick), told, quick, **given))
    worth = 50.0 + 5 * (variant in ("hypermixer", "transformer")) + 2 * (variant in TABLE_1) + (phase == "seeds")
    return replace(job, worth=worth, seconds=estimate.of(job))


def seed_runs(outcomes: Outcomes, task: str, variant: str) -> list[Run]:
    return page.runs(outcomes.get(f"{task}-{variant}-seeds"))


def mean_over_tasks(outcomes: Outcomes, variant: str) -> list[Run]:
    """Seed by seed, of the seeds that every task has."""
    known = [by_seed(seed_runs(outcomes, task, variant)) for task in TASKS]
    seeds = sorted(set.intersection(*(set(of) for of in known)))
    return [{"seed": seed, "state": "finished", "score": statistics.fmean(of[seed]["score"] for of in known)} for seed in seeds]


def claims(outcomes: Outcomes) -> list[Claim]:
    """Written down before the runs."""
    ours = mean_over_tasks(outcomes, "hypermixer")
    return [
        Claim(f"mean of five tasks: HyperMixer before {recipe.VARIANTS[other].title}", ours, mean_over_tasks(outcomes, other))
        for other in ("transformer", "transformer-pre", "shared-vector-positions", "feature-only-positions")
    ]


def tables(content: Results) -> str:
    outcomes, quick = results.outcomes(content), bool(content["quick"])
    parts = [
        "Accuracy in %, valid / test, mean (standard deviation) of ten seeds. AG News has no rows of valid, so its test rows stand there. "
        "Most training sets are parts still: compare rows of this table with each other.",
        _accuracies(outcomes),
        page.verdict_table(judge(claims(outcomes)), scale=100),
        _over_tasks(outcomes),
        _chosen(outcomes, quick),
    ]
    return "\n\n".join(part for part in parts if part)


def _accuracies(outcomes: Outcomes) -> str:
    titles = {"bag": "bag of words", **{name: recipe.VARIANTS[name].title for name in VARIANTS}}
    rows = []
    for name, title in titles.items():
        cells = []
        for task in TASKS:
            runs = page.runs(outcomes.get(f"{task}-bag")) if name == "bag" else seed_runs(outcomes, task, name)
            test = page.spread(page.scores(runs, "test"), 1, 100)
            cells.append(page.cell(runs, 1, 100) + ("" if test == page.NOT_RUN else f" / {test}"))
        rows.append([title, *cells])
    return page.table(["model", *TASKS.values()], rows)


def _over_tasks(outcomes: Outcomes) -> str:
    """The interval that says something about other tasks: over tasks, of the mean difference of each."""
    told = []
    for other in ("transformer", "transformer-pre"):
        known = []
        for task in TASKS:
            ours, theirs = by_seed(seed_runs(outcomes, task, "hypermixer")), by_seed(seed_runs(outcomes, task, other))
            both = sorted(set(ours) & set(theirs))
            known += [statistics.fmean(ours[seed]["score"] - theirs[seed]["score"] for seed in both)] if both else []
        bounds = interval(known) if len(known) > 1 else None
        if bounds is not None:
            told.append(
                f"{recipe.VARIANTS[other].title} {100 * statistics.fmean(known):+.1f} [{100 * bounds[0]:+.1f}, {100 * bounds[1]:+.1f}]"
            )
    return f"HyperMixer ahead, mean and 95 % interval over tasks: {'; '.join(told)}." if told else ""


def _chosen(outcomes: Outcomes, quick: bool) -> str:
    rows = []
    for variant in VARIANTS:
        found = []
        for task in TASKS:
            looked, cell = searched(task, variant, quick, outcomes)
            tried = {one.rate for one in cells(outcomes, looked)}
            border = "\\*" if cell is not None and cell.rate in (min(tried), max(tried)) else ""
            found.append(None if cell is None else f"{cell.rate:g}{border}, {cell.dropout:g}")
        rows.append([recipe.VARIANTS[variant].title, *found])
    return "Learning rate and dropout (\\* at the border of the rates tried):\n\n" + page.table(["model", *TASKS.values()], rows)


ITEM = Item("fair", "rows", "Tables 1 and 5 again: larger parts, test sets, a bag of words, ten seeds", jobs, tables)
