"""Cost(R) = E · D · H of results on disk: a run or model folder, a tune folder, a compare folder.

Of several runs H counts them, D is the mean number of examples read, E the mean over all examples; E · D · H is their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tokmix.core.checks import is_there
from tokmix.runs.files import JsonObject, read_json

TUNE, COMPARE, RECORD = "tune.json", "compare.json", "training.json"
NOT_MEASURED = "not measured"
NEEDED = ("flops_training", "examples", "seconds")


@dataclass(frozen=True)
class RunCost:
    """The cost of one run, from its record."""

    flops_training: float  # FLOPs of matrix products, forward and backward, per example on average
    examples: float
    seconds: float
    peak_memory_bytes: float | None = None
    peak_memory_of: str | None = None
    energy_joules: float | None = None
    energy_source: str | None = None

    @classmethod
    def read(cls, record: object) -> RunCost | None:
        """Read a record of any version; None if it lacks what Cost(R) needs."""
        if not isinstance(record, dict) or not all(isinstance(record.get(name), (int, float)) for name in NEEDED):
            return None
        values: JsonObject = {field.name: record.get(field.name) for field in fields(cls)}
        return cls(**values)


@dataclass(frozen=True)
class Total:
    """Cost(R) of one result."""

    result: str
    flops_training: float  # E
    examples: float  # D
    trials: int  # H
    without_record: int  # of the trials
    flops: float
    seconds: float
    peak_memory_bytes: float | None
    peak_memory_of: str | None
    energy_joules: float | None  # None if a run has none
    energy_source: str


@dataclass(frozen=True)
class Result:
    """One result and the costs of its runs; None for a run without a cost record."""

    name: str
    costs: Sequence[RunCost | None]

    def total(self) -> Total:
        known = [cost for cost in self.costs if cost is not None]
        examples = sum(cost.examples for cost in known)
        flops = sum(cost.flops_training * cost.examples for cost in known)
        joules = [cost.energy_joules for cost in known if cost.energy_joules is not None]
        measured = bool(known) and len(joules) == len(known)
        return Total(
            result=self.name,
            flops_training=flops / examples if examples else 0,
            examples=examples / len(known) if known else 0,
            trials=len(self.costs),
            without_record=len(self.costs) - len(known),
            flops=flops,
            seconds=sum(cost.seconds for cost in known),
            peak_memory_bytes=max((cost.peak_memory_bytes for cost in known if cost.peak_memory_bytes is not None), default=None),
            peak_memory_of=" and ".join(sorted({cost.peak_memory_of for cost in known if cost.peak_memory_of})) or None,
            energy_joules=sum(joules) if measured else None,
            energy_source=" and ".join(sorted({cost.energy_source or NOT_MEASURED for cost in known})) if measured else NOT_MEASURED,
        )


def is_result(path: str | Path) -> bool:
    """Whether this folder has a cost record, or holds a run that has not ended."""
    folder = Path(path)
    names = (TUNE, COMPARE, RECORD, f"model/{RECORD}", "run.json", "config.json")
    return is_there(folder) and any((folder / name).is_file() for name in names)


def results(path: str | Path) -> list[Result]:
    folder = Path(path)
    if (folder / COMPARE).is_file():
        return _compared(folder)
    if (folder / TUNE).is_file():
        known = _read(folder / TUNE)
        trials = _listed(folder / TUNE, known, "trials")
        if not trials:
            raise ValueError(f"{folder / TUNE} has no finished trial yet")
        return [Result(f"{folder}: {len(trials)} trials", [RunCost.read(trial.get("cost")) for trial in trials])]
    from tokmix.training import model_folder  # imports packages that the cost of a stack does not need

    place = model_folder.find(folder)
    record = _read(place / RECORD)
    cost = RunCost.read(record.get("cost"))
    if cost is None:
        raise ValueError(f"{place / RECORD} does not hold {', '.join(NEEDED)}: it was written by an older tokmix, or is damaged")
    stack = record.get("model", {}).get("stack", "")
    return [Result(f"{folder}: {stack}" if stack else str(folder), [cost])]


def _compared(folder: Path) -> list[Result]:
    """One result for each entry and fraction, over its seeds."""
    path = folder / COMPARE
    groups: dict[str, list[RunCost | None]] = {}
    for run in _listed(path, _read(path), "runs"):
        name = f"{run.get('entry')} at {100 * float(run.get('fraction', 1)):g} %"
        cost = run.get("cost")
        if run.get("state") == "finished" and isinstance(cost, dict) and cost.get("flops_training") is None:
            continue  # the bag of words has no FLOPs
        groups.setdefault(name, []).append(RunCost.read(cost))
    if not groups:
        raise ValueError(f"{path} has no run yet")
    return [Result(name, costs) for name, costs in groups.items()]


def _listed(path: Path, known: JsonObject, name: str) -> list[JsonObject]:
    found = known.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{path} is damaged: {name!r} is not a list of runs")
    return found


def _read(path: Path) -> JsonObject:
    if not path.is_file():
        raise ValueError(f"{path} is missing: {path.parent} is not a model folder of `tokmix train`")
    return read_json(path)
