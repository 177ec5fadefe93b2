"""Runs of synthetic jobs: which learning rate was best, and runs gathered from a results file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from reproduce.claims import Run, by_seed
from reproduce.item import Results
from reproduce.job import Job

QUICK_NOTE = "A quick run, tiny and short: it shows that everything works, and its numbers mean nothing."


def job(key: str, spec: dict[str, Any], length: int) -> Job:
    return Job(key, "synthetic", spec, weight=len(spec["members"]) * spec["steps"] * spec["batch"] * length / 1e9)


def scored(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if by_seed([run])]


def best(runs: Iterable[Run]) -> Run | None:
    """The run with the highest score, among equals the one with the lowest loss; None where none has a score."""
    loss = lambda run: math.inf if run["loss"] is None else run["loss"]
    return max(scored(runs), key=lambda run: (run["score"], -loss(run)), default=None)


def at_best_rate(runs: Sequence[Run], seed: int = 0) -> list[Run]:
    """All runs at the learning rate that was best for this seed."""
    chosen = best(run for run in runs if run["seed"] == seed)
    return [] if chosen is None else [run for run in runs if run["lr"] == chosen["lr"]]


def gather(results: Results, **wanted: Any) -> dict[str, list[Run]]:
    """model -> its runs, of the jobs whose spec, or whose task's settings, have these values."""
    found: dict[str, list[Run]] = {}
    for record in results["jobs"]:
        known = record["spec"]["settings"] | record["spec"]
        if record["outcome"] is not None and all(known.get(name) == value for name, value in wanted.items()):
            for run in record["outcome"]["runs"]:
                found.setdefault(run["model"], []).append(run)
    return found


def described(results: Results, **wanted: Any) -> dict[str, dict[str, Any]]:
    """model -> what the jobs say of it (size, state)."""
    found: dict[str, dict[str, Any]] = {}
    for record in results["jobs"]:
        known = record["spec"]["settings"] | record["spec"]
        if record["outcome"] is not None and all(known.get(name) == value for name, value in wanted.items()):
            found |= record["outcome"].get("models", {})
    return found
