"""Runs -> compare.json: means and deviations, tests between all pairs, costs, and the Pareto front of score against cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokmix.core.optional import np
from tokmix.show import pareto
from tokmix.study import statistics
from tokmix.study.compare import outcomes
from tokmix.study.compare.plan import BAG
from tokmix.study.compare.records import FRONTS, P_VALUES, Comparison, CostPart, Entry, Facts, MeanCost, Point, Row, Run, RunCost, Test

FORMAT, VERSION = "tokmix-compare", 1


@dataclass
class Result:
    entry: str
    fraction: float
    seed: int | None
    state: str = "finished"
    score: float | None = None
    cost: RunCost | None = None
    error: str | None = None
    folder: str | None = None
    sums: Callable[[], np.ndarray] | None = field(default=None, repr=False)  # [examples, k], read when they are needed

    def record(self) -> Run:
        return {
            "entry": self.entry, "seed": self.seed, "fraction": self.fraction, "state": self.state, "score": self.score,
            "cost": self.cost, "error": self.error, "folder": self.folder,
        }  # fmt: skip


def summarise(
    entries: Sequence[Entry], results: Sequence[Result], seeds: Sequence[int], fractions: Sequence[float], facts: Facts
) -> Comparison:
    """facts: data, task, metric, higher_is_better, command, ..., copied into the file."""
    names = [str(entry["name"]) for entry in entries]
    by_place = {
        (one.entry, one.fraction): [other for other in results if (other.entry, other.fraction) == (one.entry, one.fraction)]
        for one in results
    }
    table = [_row(name, fraction, by_place.get((name, fraction), [])) for fraction in fractions for name in names]
    tests = [test for fraction in fractions for test in _tests(names, fraction, results, seeds)]
    for kind, holm in P_VALUES:
        for test, corrected in zip(tests, statistics.holm([test[kind] for test in tests]), strict=True):
            test[holm] = corrected
    fronts = {name: front(table, name, facts["higher_is_better"]) for name in FRONTS}
    return {
        "format": FORMAT, "version": VERSION, **facts, "seeds": list(seeds), "fractions": list(fractions),
        "entries": [entry.copy() for entry in entries], "runs": [one.record() for one in results], "table": table, "tests": tests,
        "front": fronts,
    }  # fmt: skip


def _row(name: str, fraction: float, results: Sequence[Result]) -> Row:
    scores = [one.score for one in results if one.score is not None]
    costs = [one.cost for one in results if one.cost is not None]
    error = next((one.error for one in results if one.error), None) if not scores else None
    mean = math.fsum(scores) / len(scores) if scores else None
    flops, seconds, joules = _mean(costs, "flops"), _mean(costs, "seconds"), _mean(costs, "energy_joules")
    cost: MeanCost = {"flops_training": _mean(costs, "flops_training"), "flops": flops, "seconds": seconds, "energy_joules": joules}
    return {
        "entry": name, "fraction": fraction, "mean": mean, "deviation": deviation(scores), "n": len(scores),
        "failed": sum(one.state == "failed" for one in results), "cost": cost, "note": error,
    }  # fmt: skip


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mean(costs: Sequence[RunCost], part: str) -> float | None:
    """The mean over runs; None if any run lacks the value."""
    values = [_whole(cost) if part == "flops" else cost.get(part) for cost in costs]
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _whole(cost: RunCost) -> float | None:
    return None if cost.get("flops_training") is None else cost["flops_training"] * cost["examples"]


def _tests(names: Sequence[str], fraction: float, results: Sequence[Result], seeds: Sequence[int]) -> list[Test]:
    """Test every pair over the seeds that both finished. The bag of words has no seed: it gets the same score for each."""
    here: dict[tuple[str, int], Result] = {}
    for one in results:
        if one.fraction == fraction and one.score is not None:
            here |= {(one.entry, seed): one for seed in (seeds if one.seed is None else [one.seed])}
    there = [name for name in names if any((name, seed) in here for seed in seeds)]
    drawn = _resamples(there, here, seeds)
    tests: list[Test] = []
    for (i, a), (j, b) in itertools.combinations(enumerate(there), 2):
        common = [place for place, seed in enumerate(seeds) if (a, seed) in here and (b, seed) in here]
        if not common:
            continue
        left, right = ([float(here[name, seeds[place]].score or 0.0) for place in common] for name in (a, b))
        tests.append({
            "a": a, "b": b, "fraction": fraction, "difference": (math.fsum(left) - math.fsum(right)) / len(common),
            "t_p": statistics.paired_t(left, right), "bootstrap_p": drawn.over_examples(i, j, common) if drawn else None,
            "bootstrap_both_p": drawn.over_both(i, j, common) if drawn else None, "n_seeds": len(common), "n_examples": _examples(here),
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


def front(table: Sequence[Row], part: CostPart, higher: bool) -> list[Point]:
    """The Pareto front: rows that no row of equal or lower cost beats, from low to high cost."""
    points = [(cost, mean, row) for row in table if (mean := row["mean"]) is not None and (cost := row["cost"][part]) is not None]
    found: list[Point] = []
    for cost, mean, row in pareto.front(((cost, mean, (cost, mean, row)) for cost, mean, row in points), higher):
        point: Point = {"entry": row["entry"], "fraction": row["fraction"], "mean": mean}
        point[part] = cost
        found.append(point)
    return found


def absent_bag(fraction: float, why: str) -> Result:
    return Result(BAG, fraction, None, state="not available", error=f"not available: {why}")
