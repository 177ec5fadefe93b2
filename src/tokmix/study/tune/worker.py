"""A worker of a search: trains trials and returns their scores. `python -m tokmix.study.tune.worker`, which gets trials from a pool."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from tokmix.runs.files import JsonObject
from tokmix.runs.locks import holding
from tokmix.runs.pool import Answer, Task
from tokmix.runs.pool_server import serve
from tokmix.study.tune.chance import Figure
from tokmix.study.tune.space import Parameters, apply
from tokmix.training import train
from tokmix.training.imports import import_files
from tokmix.training.progress import Diverged
from tokmix.training.settings import ModelSettings, Settings, TrainSettings
from tokmix.training.side_by_side import train_all


@dataclass(frozen=True)
class Study:
    """The settings that all trials of a search share, sent between processes as JSON."""

    out: str
    data: str  # token files
    settings: dict[str, JsonObject]  # by group and name
    figure: JsonObject
    threads: int
    imports: list[str]

    def record(self) -> JsonObject:
        return asdict(self)


def do(task: Task) -> Answer:
    """Train trials side by side -> the score and the record of each, or the error. A second process with the same trial waits for the
    first, and then continues its run."""
    study, before = Study(**task["study"]), torch.get_num_threads()
    try:
        import_files(study.imports)
        torch.set_num_threads(study.threads)  # not by the number of workers: another order of sums would change the numbers
        with ExitStack() as locks:
            for trial in task["trials"]:
                locks.enter_context(holding(Path(study.out) / "locks" / f"{trial['index']:04d}.run"))
            return {"state": "finished", "outcomes": _train(study, task["trials"], task["device"])}
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        return _failure(error)
    finally:
        torch.set_num_threads(before)


def _failure(error: Exception) -> Answer:
    return {"state": "failed", "error": " ".join(str(error).split())}


def _train(study: Study, trials: list[JsonObject], device: str | None) -> list[Answer]:
    """Continue from the last checkpoint a run whose worker died."""
    began = time.monotonic()
    sessions = [
        train.session(study.data, Path(study.out) / "trials" / f"{trial['index']:04d}", _settings(study, trial["parameters"], device),
                      resume=True, imports=study.imports, quiet=True, side_by_side=len(trials))
        for trial in trials
    ]  # fmt: skip
    return [_outcome(Figure(**study.figure), record, began) for record in train_all(sessions)]


def _settings(study: Study, parameters: Parameters, device: str | None) -> Settings:
    groups = study.settings
    asked = Settings(ModelSettings(**groups["model"]), TrainSettings(**groups["train"]))  # the data is already prepared
    settings = trial_settings(asked, parameters, device)
    settings = replace(settings, train=replace(settings.train, threads=study.threads))
    if Figure(**study.figure).split == "valid":  # a single run would report on test
        settings = replace(settings, train=replace(settings.train, final="valid"))
    return settings


def _outcome(figure: Figure, record: JsonObject | Exception, began: float) -> Answer:
    if isinstance(record, dict):
        score, cost = figure.of(record), record["cost"]
        if math.isfinite(score):
            return {"score": score, "result": {"state": "finished", "seconds": cost["seconds"], "cost": cost, "error": None}}
        record = Diverged(f"{figure.name} is {score}")
    if isinstance(record, Diverged):
        cost = record.cost or {}
        seconds = cost.get("seconds", time.monotonic() - began)
        return {"score": figure.chance, "result": {"state": "diverged", "seconds": seconds, "cost": cost, "error": str(record)}}
    if not isinstance(record, (ValueError, OSError, RuntimeError)):
        raise record
    return _failure(record)


def trial_settings(settings: Settings, parameters: Parameters, device: str | None) -> Settings:
    chosen = apply(settings, parameters)
    return replace(
        chosen, train=replace(chosen.train, baseline=False, refit=False, fit_time=False, device=chosen.train.device or device), prepare={}
    )


def last_entry(log: Path) -> JsonObject:
    """The last complete line of a run's log; {} if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().split(b"\n")[:-1]
        return next((entry for entry in map(json.loads, reversed(lines)) if "loss" in entry), {})
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


if __name__ == "__main__":
    try:
        serve(do)
    except KeyboardInterrupt:  # after a clean checkpoint
        sys.exit(130)
