"""Which jobs follow from which outcomes: learning rates first, further ones while the best is at a border, then seeds at the best.

KEY-rates          the rates of the grid, side by side, one seed that no claim uses
KEY-rate-0.016     one more rate, where the best so far is the highest or the lowest tried
KEY-seeds          fresh seeds at the best rate
KEY-speed          training and decoding alone on the device, at the item's length and at 4,096
KEY-seconds        the same seeds, for as many steps as fit into the seconds that the yardstick's run takes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reproduce import lm_plan, page
from reproduce.fair import estimate
from reproduce.item import Outcomes
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting

SEARCH_SEED = 100
FARTHEST = 3  # rates that are tried beyond either end of the grid
LONG = 4096  # tokens of context at which speed is measured beside the item's own


@dataclass(frozen=True)
class Plan:
    """What an item's language models share. worth: of its jobs; those of entries with `first` have FIRST more."""

    setting: Setting
    rates: Sequence[float]
    worth: float
    long: int = LONG
    farthest: int = FARTHEST
    small: bool = False  # a quick run

    @property
    def steps(self) -> int:
        assert self.setting.steps is not None
        return self.setting.steps


FIRST = 30.0
ORDER = {"rates": 8.0, "rate": 9.0, "seeds": 6.0, "speed": 7.0, "seconds": 5.0}  # within an entry, what is begun with is worth most


def ranked(plan: Plan, entry: Entry, job: Job, phase: str) -> Job:
    worth = plan.worth + ORDER[phase] / 10 + FIRST * entry.first
    return replace(job, worth=worth, seconds=estimate.of(job), weight=1.0)


def rated(plan: Plan, entry: Entry, outcomes: Outcomes) -> tuple[list[Job], float | None]:
    """The jobs of the search as far as they can be named, and the best rate when all of them are done."""
    make = lambda rates, key: ranked(
        plan, entry, lm_plan.job(plan.setting, entry, [{"seed": SEARCH_SEED, "lr": rate} for rate in rates], f"{entry.key}-{key}"),
        "rates" if key == "rates" else "rate",
    )  # fmt: skip
    jobs = [make(plan.rates, "rates")]
    while all(job.key in outcomes for job in jobs):
        found = losses(outcomes, jobs)
        rate = beyond(found, plan.rates, plan.farthest)
        if rate is None:
            return jobs, best(found)
        jobs.append(make([rate], f"rate-{rate:g}"))
    return jobs, None


def losses(outcomes: Outcomes, jobs: Sequence[Job]) -> dict[float, float]:
    """By rate, ascending; a run that diverged has an infinite one. Rates of a job that failed are not there."""
    runs = [run for job in jobs for run in page.runs(outcomes.get(job.key))]
    return {run["lr"]: math.inf if run["score"] is None else run["score"] for run in sorted(runs, key=lambda run: run["lr"])}


def best(found: Mapping[float, float]) -> float | None:
    """The smaller rate where two are equal; None where nothing has a loss."""
    finite = {rate: loss for rate, loss in found.items() if loss < math.inf}
    return min(finite, key=lambda rate: (finite[rate], rate), default=None)


def beyond(found: Mapping[float, float], grid: Sequence[float], farthest: int = FARTHEST) -> float | None:
    """The next rate to try: beyond the border at which the best one is, as long as that is not too far from the grid."""
    top, rates = best(found), sorted(found)
    if top is None:  # all of them diverged: lower ones may not
        lower = rates[0] / 2 if rates else None
        return lower if lower is not None and lower >= min(grid) / 2**farthest else None
    if top == rates[-1] and 2 * top <= max(grid) * 2**farthest:
        return 2 * top
    if top == rates[0] and top / 2 >= min(grid) / 2**farthest:
        return top / 2
    return None


def at_border(found: Mapping[float, float]) -> bool:
    return best(found) in (min(found, default=None), max(found, default=None))


def seeded(plan: Plan, entry: Entry, rate: float, phase: str = "seeds", steps: int | None = None) -> Job:
    setting = plan.setting if steps is None else replace(plan.setting, steps=steps)
    return ranked(plan, entry, lm_plan.job(setting, entry, lm_plan.seeds_at(setting, entry, rate), f"{entry.key}-{phase}"), phase)


def speed(plan: Plan, entry: Entry) -> Job:
    model = plan.setting.model(entry.stack, entry.arm, entry.settings)
    size = {"steps": 4, "turns": 2, "tokens": 4} if plan.small else {"steps": 60, "turns": 3, "tokens": 32}
    spec: dict[str, Any] = {
        "models": {str(length): model | {"max_len": length} for length in (model["max_len"], plan.long)},
        "batch_tokens": plan.setting.batch * model["max_len"], "precision": "bf16", **size,
    }  # fmt: skip
    spec |= {} if entry.optimizer == "adamw" else {"optimizer": entry.optimizer}
    return ranked(plan, entry, Job(f"{entry.key}-speed", "lm_speed", spec), "speed")


def tokens_per_s(outcomes: Outcomes, entry: Entry, length: int) -> float | None:
    return outcomes.get(f"{entry.key}-speed", {}).get("speeds", {}).get(str(length), {}).get("tokens_per_s")


def in_the_seconds_of(plan: Plan, yardstick: Entry, entry: Entry, rate: float, outcomes: Outcomes, most: int) -> Job | None:
    """Seeds for as many steps as the entry makes while the yardstick makes the plan's; at most so many, since a text ends."""
    ours, theirs = (tokens_per_s(outcomes, one, plan.setting.context) for one in (entry, yardstick))
    if ours is None or theirs is None:
        return None
    return seeded(plan, entry, rate, "seconds", max(1, min(most, round(plan.steps * ours / theirs))))
