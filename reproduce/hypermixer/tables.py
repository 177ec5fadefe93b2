"""Pieces that the tables of searched models share: accuracies beside the paper's, learning rates, what was trained on, what it took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reproduce import page
from reproduce.claims import Claim, Run, Verdict, by_seed, judge
from reproduce.hypermixer import paper, recipe
from reproduce.item import Outcomes, Results

PERCENT = 100.0
BORDER = "\\*"


def seed_runs(outcomes: Outcomes, task: str, variant: str) -> list[Run]:
    return page.runs(outcomes.get(f"{task}-{variant}-seeds"))


def parameters(outcomes: Outcomes, variant: str) -> str:
    """Of the binary tasks; a third class adds 257."""
    found = [
        outcomes[key]["parameters"] for task in paper.TASKS for key in [f"{task}-{variant}-seeds"] if "parameters" in outcomes.get(key, {})
    ]
    return f"{min(found) / 1e6:.2f} M" if found else page.NOT_RUN


def accuracies(outcomes: Outcomes, variants: Sequence[str], theirs: Callable[[str, int], str]) -> str:
    """One row a model: ours, and the paper's behind a stroke. theirs(variant, place of the task) -> its cell, '' where it has none."""
    rows = []
    for variant in variants:
        cells = []
        for place, task in enumerate(paper.TASKS):
            ours, other = page.cell(seed_runs(outcomes, task, variant), scale=PERCENT), theirs(variant, place)
            cells.append(f"{ours} / {other}" if other else ours)
        rows.append([recipe.VARIANTS[variant].title, parameters(outcomes, variant), *cells, average(outcomes, variant)])
    return page.table(["model", "parameters", *(paper.TITLES[task] for task in paper.TASKS), "mean of ours"], rows)


def average(outcomes: Outcomes, variant: str) -> str:
    means = [statistics.fmean(scores) for task in paper.TASKS if (scores := page.scores(seed_runs(outcomes, task, variant)))]
    return f"{PERCENT * statistics.fmean(means):.1f}" if len(means) == len(paper.TASKS) else page.NOT_RUN


def rates(outcomes: Outcomes, variants: Sequence[str], quick: bool) -> str:
    """The chosen learning rates and epochs; * where a rate lies at the border of the grid."""
    rows = []
    for variant in variants:
        cells = []
        for place, task in enumerate(paper.TASKS):
            known = paper.TABLE_3.get(variant)
            ours = _chosen(outcomes, task, variant, quick)
            cells.append(ours if known is None else f"{ours} / {_rate(known[place])}")
        rows.append([recipe.VARIANTS[variant].title, *cells])
    return page.table(["learning rate (epochs), ours / paper", *(paper.TITLES[task] for task in paper.TASKS)], rows)


def _chosen(outcomes: Outcomes, task: str, variant: str, quick: bool) -> str:
    choice = recipe.looked(task, variant, quick, outcomes)[1]
    if choice is None:
        return page.NOT_RUN
    return f"{_rate(choice.rate)}{BORDER if _at_border(outcomes, task, variant, choice) else ''} ({choice.epochs})"


def _rate(rate: float) -> str:
    return f"{rate:.0e}".replace("e-0", "e-")


def _at_border(outcomes: Outcomes, task: str, variant: str, choice: recipe.Choice) -> bool:
    tried = [run["lr"] for run in page.runs(outcomes[f"{task}-{variant}-search"])]
    return choice.rate in (min(tried), max(tried))


def border_note(table: str) -> str:
    """For a table of rates."""
    return f"{BORDER} at the border of the grid: a better rate may lie beyond it." if BORDER in table else ""


def search_table(outcomes: Outcomes, variants: Sequence[str]) -> str:
    """What each rate gave on the rows held out, one seed: folded away, since it is long."""
    tried = sorted({run["lr"] for key, one in outcomes.items() if key.endswith("-search") for run in page.runs(one)}, reverse=True)
    rows = []
    for variant in variants:
        for task in paper.TASKS:
            short, whole = (
                {run["lr"]: run for run in page.runs(outcomes.get(f"{task}-{variant}-{phase}"))} for phase in ("search", "finals")
            )
            cells = [_dev(short.get(rate)) + (f", then {_dev(whole[rate])}" if rate in whole else "") for rate in tried]
            rows.append([recipe.VARIANTS[variant].title, paper.TITLES[task], *cells])
    heads = ["model", "task", *(_rate(rate) for rate in tried)]
    summary = "<summary>The search: accuracy on held-out rows of train by learning rate, after a third of the epochs, then all</summary>"
    return f"<details>{summary}\n\n{page.table(heads, rows)}\n\n</details>"


def _dev(run: Run | None) -> str:
    if run is None:
        return page.NOT_RUN
    return "diverged" if run["state"] != "finished" else f"{PERCENT * run['score']:.1f}"


def data_note(outcomes: Outcomes) -> str:
    """Which part of each task there was, and how much of it searches held out."""
    table = []
    for task in paper.TASKS:
        found = [one["rows"] for key, one in outcomes.items() if key.startswith(f"{task}-") and "rows" in one]
        if found:
            rows = max(found, key=lambda one: int(one["dev"]))
            whole, ours = paper.TRAIN_ROWS[task], rows["train"] + rows["dev"] + rows["pieces"]
            part = "all" if ours >= whole else f"{PERCENT * ours / whole:.0f} %"
            pieces = f" and their {rows['pieces']:,} pieces" if rows["pieces"] else ""
            cut = f"{rows['cut']:,}, at {recipe.TASKS[task].limit} tokens"
            table.append([paper.TITLES[task], f"{ours:,}", part, f"{rows['dev']:,}{pieces}", f"{rows['valid']:,}", cut])
    heads = ["data", "training rows", "of the paper's", "of these, held out in searches", "validation rows", "texts cut"]
    return page.table(heads, table) if table else ""


def orders(outcomes: Outcomes, others: Sequence[str], behind: Callable[[str, int], bool], hero: str = "hypermixer") -> str:
    """A matrix: how far `hero` is ahead of each other model, and whether the paper's order of the two holds. behind(other, place of
    the task): the paper has the other one ahead."""
    found = judge([_claim(outcomes, task, hero, other, behind(other, place)) for other in others for place, task in enumerate(paper.TASKS)])
    of, body = iter(found), []
    for other in others:
        cells = [_order(next(of), behind(other, place)) for place in range(len(paper.TASKS))]
        body.append([recipe.VARIANTS[other].title, *cells])
    counted = page.listed(f"Of {len(found)} orders:", page.tally(Counter(one.word for one in found)).split(", "))
    any_behind = any(behind(other, place) for other in others for place in range(len(paper.TASKS)))
    note = "\n\n† The paper has the other model ahead." if any_behind else ""
    heads = [f"{recipe.VARIANTS[hero].title}, against", *(paper.TITLES[task] for task in paper.TASKS)]
    means = [Claim(f"mean of five tasks: {recipe.VARIANTS[hero].title} before {recipe.VARIANTS[other].title}", task_mean(outcomes, hero),
                   task_mean(outcomes, other)) for other in others]  # fmt: skip
    return (
        f"{page.table(heads, body)}{note}\n\n{counted}\n\nThe mean of the five tasks, seed by seed. The "
        f"interval is over seeds: it says nothing about other tasks.\n\n{page.claims_table(means, PERCENT)}"
    )


def task_mean(outcomes: Outcomes, variant: str) -> list[Run]:
    """The mean accuracy over all tasks, of the seeds that every task has."""
    known = [by_seed(seed_runs(outcomes, task, variant)) for task in paper.TASKS]
    seeds = sorted(set.intersection(*(set(of) for of in known)))
    return [{"seed": seed, "score": statistics.fmean(of[seed]["score"] for of in known)} for seed in seeds]


def _claim(outcomes: Outcomes, task: str, hero: str, other: str, behind: bool) -> Claim:
    better, worse = (other, hero) if behind else (hero, other)
    says = f"{paper.TITLES[task]}: {recipe.VARIANTS[better].title} before {recipe.VARIANTS[worse].title}"
    return Claim(says, seed_runs(outcomes, task, better), seed_runs(outcomes, task, worse))


def _order(one: Verdict, behind: bool) -> str:
    if one.difference is None:
        return page.NOT_RUN
    chances = ", ".join(page.p(value) for value in (one.t, one.examples) if value is not None)
    ahead = -one.difference if behind else one.difference
    return f"{PERCENT * ahead:+.1f}{'†' if behind else ''} **{one.word}** (p {chances or 'unknown'})"


def _machine_seconds(jobs: Sequence[Mapping[str, Any]]) -> float:
    return sum(job["measured"]["seconds"] / job["measured"]["workers"] for job in jobs)


def _span(jobs: Sequence[Mapping[str, Any]]) -> str:
    counts = [job["measured"]["workers"] for job in jobs]
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def cost_note(results: Results, groups: Mapping[str, Callable[[Mapping[str, Any]], bool]]) -> str:
    """Time of some groups of jobs. Those that run side by side share the machine: a job takes its seconds over how many they were."""
    done = [job for job in results["jobs"] if job["outcome"] is not None and "measured" in job and job["outcome"].get("tokens")]
    calls = results.get("calls") or []
    if not done or not calls:
        return ""
    rows = []
    for title, belongs in groups.items():
        jobs = [job for job in done if belongs(job)]
        runs = sum(len(job["outcome"]["runs"]) for job in jobs)
        tokens = sum(job["outcome"]["tokens"] * len(job["outcome"]["runs"]) for job in jobs)
        machine = _machine_seconds(jobs)
        rate = f"{tokens / machine / 1e6:.2f} M" if machine else ""
        rows.append([title, len(jobs), runs, f"{tokens / 1e6:,.0f} M", f"{machine / 60:.1f}", rate])
    device = sorted({str((job.get("machine") or {}).get("gpu") or (job.get("machine") or {}).get("cpu") or "?") for job in done})
    note = (
        f"Minutes of the machine ({', '.join(device)}): seconds of the jobs over how many ran at a time ({_span(done)}), each training its "
        "runs side by side; compiling, recording and evaluating included. Tokens are without padding."
    )
    if (wall := sum(call["seconds"] for call in calls)) >= _machine_seconds(done):  # else a call was killed before it could tell
        joules = [call["energy_joules"] for call in calls]
        energy = f", and {sum(joules) / 3.6e6:.2f} kWh of the card" if all(value is not None for value in joules) else ""
        note += f" From first to last the calls took {wall / 60:.1f} minutes{energy}."
    return page.table(["", "jobs", "runs", "tokens trained on", "minutes", "tokens a second"], rows) + f"\n\n{note}"
