"""Runs -> compare.json: means and spreads, tests between all pairs, what each cost, and who is on the front of score against cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokmix.core.optional import np
from tokmix.study import statistics
from tokmix.study.compare import outcomes
from tokmix.study.compare.plan import BAG

FORMAT, VERSION = "tokmix-compare", 1
COSTS = ("flops_training", "flops", "seconds", "energy_joules")  # flops: of the whole training, flops_training x examples


@dataclass
class Result:
    entry: str
    fraction: float
    seed: int | None
    state: str = "finished"
    score: float | None = None
    cost: dict[str, Any] | None = None
    error: str | None = None
    folder: str | None = None
    sums: Callable[[], np.ndarray] | None = field(default=None, repr=False)  # [examples, k], read when they are needed

    def record(self) -> dict[str, Any]:
        names = ("entry", "seed", "fraction", "state", "score", "cost", "error", "folder")
        return {name: getattr(self, name) for name in names}


def summarise(
    entries: Sequence[Mapping[str, Any]], results: Sequence[Result], seeds: Sequence[int], fractions: Sequence[float], facts: dict[str, Any]
) -> dict[str, Any]:
    """facts: data, task, metric, higher_is_better, command, ... as they go into the file."""
    names = [str(entry["name"]) for entry in entries]
    by_place = {
        (one.entry, one.fraction): [other for other in results if (other.entry, other.fraction) == (one.entry, one.fraction)]
        for one in results
    }
    table = [_row(name, fraction, by_place.get((name, fraction), [])) for fraction in fractions for name in names]
    tests = [test for fraction in fractions for test in _tests(names, fraction, results, seeds)]
    for kind in ("t_p", "bootstrap_p", "bootstrap_both_p"):
        for test, corrected in zip(tests, statistics.holm([test[kind] for test in tests]), strict=True):
            test[f"{kind}_holm"] = corrected
    fronts = {name: front(table, name, facts["higher_is_better"]) for name in COSTS[1:]}
    return {
        "format": FORMAT, "version": VERSION, **facts, "seeds": list(seeds), "fractions": list(fractions),
        "entries": [dict(entry) for entry in entries], "runs": [one.record() for one in results], "table": table, "tests": tests,
        "front": fronts,
    }  # fmt: skip


def _row(name: str, fraction: float, results: Sequence[Result]) -> dict[str, Any]:
    scores = [one.score for one in results if one.score is not None]
    costs = [one.cost for one in results if one.cost is not None]
    told = next((one.error for one in results if one.error), None) if not scores else None
    mean = math.fsum(scores) / len(scores) if scores else None
    return {
        "entry": name, "fraction": fraction, "mean": mean, "deviation": deviation(scores), "n": len(scores),
        "failed": sum(one.state == "failed" for one in results), "cost": {part: _mean(costs, part) for part in COSTS}, "note": told,
    }  # fmt: skip


def deviation(values: Sequence[float]) -> float | None:
    """Of a sample; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mean(costs: Sequence[Mapping[str, Any]], part: str) -> float | None:
    """Where every run knows it."""
    values = [_whole(cost) if part == "flops" else cost.get(part) for cost in costs]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _whole(cost: Mapping[str, Any]) -> float | None:
    return None if cost.get("flops_training") is None else cost["flops_training"] * cost["examples"]


def _tests(names: Sequence[str], fraction: float, results: Sequence[Result], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Every pair, over the seeds that both finished. What has no seed (the bag of words) has the same score for each."""
    here: dict[tuple[str, int], Result] = {}
    for one in results:
        if one.fraction == fraction and one.score is not None:
            here |= {(one.entry, seed): one for seed in (seeds if one.seed is None else [one.seed])}
    there = [name for name in names if any((name, seed) in here for seed in seeds)]
    drawn = _resamples(there, here, seeds)
    tests = []
    for (i, a), (j, b) in itertools.combinations(enumerate(there), 2):
        common = [place for place, seed in enumerate(seeds) if (a, seed) in here and (b, seed) in here]
        if not common:
            continue
        left, right = ([float(here[name, seeds[place]].score or 0.0) for place in common] for name in (a, b))
        tests.append({
            "a": a, "b": b, "fraction": fraction, "difference": (math.fsum(left) - math.fsum(right)) / len(common),
            "t_p": statistics.paired_t(left, right), "bootstrap_p": drawn and drawn.over_examples(i, j, common),
            "bootstrap_both_p": drawn and drawn.over_both(i, j, common), "n_seeds": len(common), "n_examples": _examples(here),
        })  # fmt: skip
    return tests


def _examples(here: Mapping[tuple[str, int], Result]) -> int:
    return next((len(one.sums()) for one in here.values() if one.sums is not None), 0)


def _resamples(names: Sequence[str], here: Mapping[tuple[str, int], Result], seeds: Sequence[int]) -> statistics.Bootstrap | None:
    held = {id(one): one.sums() for one in here.values() if one.sums is not None}
    if not held or len(held) < len({id(one) for one in here.values()}) or len({sums.shape for sums in held.values()}) > 1:
        return None
    absent = np.full_like(next(iter(held.values())), np.nan)
    sums = np.stack([np.stack([held[id(here[name, seed])] if (name, seed) in here else absent for seed in seeds]) for name in names])
    return statistics.Bootstrap(sums, outcomes.figure)


def front(table: Sequence[Mapping[str, Any]], part: str, higher: bool) -> list[dict[str, Any]]:
    """The rows that no other row beats at no higher cost, from cheap to dear."""
    points = [row for row in table if row["mean"] is not None and row["cost"][part] is not None]
    sign = 1 if higher else -1
    best, found = -math.inf, []
    for row in sorted(points, key=lambda row: (row["cost"][part], -sign * row["mean"])):
        if sign * row["mean"] > best:
            best = sign * row["mean"]
            found.append({"entry": row["entry"], "fraction": row["fraction"], "mean": row["mean"], part: row["cost"][part]})
    return found


def absent_bag(fraction: float, why: str) -> Result:
    return Result(BAG, fraction, None, state="not available", error=f"not available: {why}")
