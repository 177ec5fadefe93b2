"""Cost(R) = E · D · H of results that are on disk: a run or model folder, a tune folder, a compare folder.

Of several runs H counts them, D is the mean number of examples read, E the mean over all examples; E · D · H is their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokmix.core.checks import is_there
from tokmix.runs.files import read_json

TUNE, COMPARE, RECORD = "tune.json", "compare.json", "training.json"
NOT_MEASURED = "not measured"
NEEDED = ("flops_training", "examples", "seconds")


@dataclass(frozen=True)
class Result:
    """One result and the costs of the runs it took; None for a run that left no record of its cost."""

    name: str
    costs: Sequence[dict[str, Any] | None]

    @property
    def known(self) -> list[dict[str, Any]]:
        return [cost for cost in self.costs if cost is not None]

    def record(self) -> dict[str, Any]:
        known = self.known
        examples = sum(cost["examples"] for cost in known)
        flops = sum(cost["flops_training"] * cost["examples"] for cost in known)
        peaks = [cost["peak_memory_bytes"] for cost in known if cost.get("peak_memory_bytes") is not None]
        joules = [cost.get("energy_joules") for cost in known]
        sources = sorted({cost.get("energy_source") or NOT_MEASURED for cost in known})
        measured = bool(known) and all(one is not None for one in joules)
        return {
            "result": self.name,
            "flops_training": flops / examples if examples else 0,
            "examples": examples / len(known) if known else 0,
            "trials": len(self.costs),
            "without_record": len(self.costs) - len(known),
            "flops": flops,
            "seconds": sum(cost["seconds"] for cost in known),
            "peak_memory_bytes": max(peaks, default=None),
            "peak_memory_of": " and ".join(sorted({cost["peak_memory_of"] for cost in known if cost.get("peak_memory_of")})) or None,
            "energy_joules": sum(one for one in joules if one is not None) if measured else None,
            "energy_source": " and ".join(sources) if measured else NOT_MEASURED,
        }


def is_result(path: str | Path) -> bool:
    """Whether this is a folder with a record of what it cost, or of a run that has not ended."""
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
        return [Result(f"{folder}: {len(trials)} trials", [_known(trial.get("cost")) for trial in trials])]
    from tokmix.training import model_folder  # with packages that a stack's cost does not need

    place = model_folder.find(folder)
    record = _read(place / RECORD)
    if _known(record.get("cost")) is None:
        raise ValueError(f"{place / RECORD} does not hold {', '.join(NEEDED)}: it was written by an older tokmix, or is damaged")
    stack = record.get("model", {}).get("stack", "")
    return [Result(f"{folder}: {stack}" if stack else str(folder), [record["cost"]])]


def _compared(folder: Path) -> list[Result]:
    """One result an entry and fraction: its seeds."""
    path = folder / COMPARE
    groups: dict[str, list[dict[str, Any] | None]] = {}
    for run in _listed(path, _read(path), "runs"):
        name = f"{run.get('entry')} at {100 * float(run.get('fraction', 1)):g} %"
        cost = run.get("cost")
        if run.get("state") == "finished" and isinstance(cost, dict) and cost.get("flops_training") is None:
            continue  # a bag of words: no FLOPs are counted for it
        groups.setdefault(name, []).append(_known(cost))
    if not groups:
        raise ValueError(f"{path} has no run yet")
    return [Result(name, costs) for name, costs in groups.items()]


def _known(cost: Any) -> dict[str, Any] | None:
    """A cost with all that is needed, else None."""
    complete = isinstance(cost, dict) and all(isinstance(cost.get(name), (int, float)) for name in NEEDED)
    return cost if complete else None


def _listed(path: Path, known: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = known.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{path} is damaged: {name!r} is not a list of runs")
    return found


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: {path.parent} is not a model folder of `tokmix train`")
    return read_json(path)
