"""A worker of `compare`: `python -m tokmix.study.compare.worker`, which gets its runs from a pool. If it is stopped in the middle of a
run, the run saves a checkpoint first.

One run folder has one owner at a time; a second one waits for the first, and then finds the run finished.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.runs.pool_server import serve

if TYPE_CHECKING:
    from tokmix.runs.files import JsonObject
    from tokmix.runs.pool import Answer, Task
    from tokmix.study.compare.records import RunCost


def do(task: Task) -> Answer:
    """Train the runs of a task side by side -> their results by key, or the error. Divergence is a result: the run would diverge again."""
    from tokmix.runs.locks import holding
    from tokmix.study.compare.result import NAME, RunResult

    runs = [one | {"device": task["device"]} for one in task["runs"]]
    with ExitStack() as locks:
        answers: dict[str, Answer] = {}
        for one in runs:  # a second worker waits, then finds the run finished
            folder = Path(one["out"])
            locks.enter_context(holding(folder.with_name(f".{folder.name}.lock")))
            if (folder / NAME).is_file():
                answers[one["key"]] = asdict(RunResult.read(folder / NAME))
        todo = [one for one in runs if one["key"] not in answers]
        return {"state": "finished", "answers": answers | {one["key"]: _settle(one, found) for one, found in _results(todo)}}


def _settle(run: Task, found: Answer | Exception) -> Answer:
    from tokmix.study.compare.result import NAME, RunResult
    from tokmix.training.progress import Diverged

    folder = Path(run["out"])
    if isinstance(found, dict) and not math.isfinite(found["score"]):
        found = Diverged(f"the {found['metric']} is not a finite number")
    if isinstance(found, dict):
        RunResult(**found).write(folder / NAME)
        return found
    if isinstance(found, Diverged):
        failed = RunResult("failed", error=str(found))
        failed.write(failure_file(folder))
        return asdict(failed)
    return {"state": "failed", "error": f"{type(found).__name__}: {' '.join(str(found).split())}"}


def _results(runs: list[Task]) -> Iterator[tuple[Task, Answer | Exception]]:
    """Yield each run with its result, or the error that ended it."""
    from tokmix.training.settings import Settings
    from tokmix.training.side_by_side import train_all
    from tokmix.training.train import session

    bags, stacks = ([one for one in runs if (one["kind"] == "bag") == bag] for bag in (True, False))
    for one in bags:
        yield one, _or_error(_fit_bag, one, Path(one["out"]))
    records = train_all([
        session(one["data"], one["out"], Settings.of(None, one["settings"] | {"train.device": one["device"]}), resume=True,
                imports=one["imports"], quiet=True, side_by_side=len(stacks))
        for one in stacks
    ])  # fmt: skip
    for one, record in zip(stacks, records, strict=True):
        yield one, record if isinstance(record, Exception) else _or_error(_score, one, record)


def _or_error(act: Callable[..., Answer], *given: object) -> Answer | Exception:
    try:
        return act(*given)
    except Exception as error:
        return error


def failure_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".failed.json")


def _score(task: Task, record: JsonObject) -> Answer:
    """Score a finished run: write its outcome on each example to a file, and return its result."""
    from tokmix.data.tokens import TokenFiles
    from tokmix.study.compare import outcomes
    from tokmix.training import model_folder
    from tokmix.training.distributed import join_world
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask, main_figure

    folder, settings = Path(task["out"]), Settings.of(None, task["settings"] | {"train.device": task["device"]})
    with join_world(settings.train.device) as world:
        trained = model_folder.load(folder / "model", world.device)
        sums = outcomes.measure(TrainingTask(TokenFiles(task["data"]), settings), trained.model, record["split"], world)
    outcomes.save(folder, sums)
    for part in ("checkpoints", "warmup"):  # the model is saved, so checkpoints are no longer needed
        shutil.rmtree(folder / part, ignore_errors=True)
    metric, sign = main_figure(record["task"], record["figures"])
    cost = _shared(record["cost"]) if task["shared"] else record["cost"]
    return {"state": "finished", "score": float(record["figures"][metric]), "metric": metric, "higher_is_better": sign > 0, "cost": cost}


def _fit_bag(task: Task, folder: Path) -> Answer:
    """Fit the bag of words on exactly the rows that the stacks are trained on."""
    import torch

    from tokmix.data.tokens import TokenFiles
    from tokmix.study.compare import outcomes
    from tokmix.training import baseline
    from tokmix.training.meter import Meter
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask

    files = TokenFiles(task["data"])
    work, split, meter = TrainingTask(files, Settings.of(None, task["settings"])), task["split"], Meter(torch.device("cpu"))
    import_module("sklearn.feature_extraction.text")  # not counted as time of the fit
    import_module("sklearn.linear_model")
    meter.start()
    predicted, features = baseline.predictions(files, split, work.kept)
    meter.stop()
    wanted = files[split].targets
    assert wanted is not None
    sums = outcomes.of_classes(predicted, wanted)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes.save(folder, sums)
    rows = len(files["train"]) if work.kept is None else len(work.kept)
    classes = len(work.card.labels)
    cost: RunCost = {"parameters": (features + 1) * (1 if classes == 2 else classes), "flops_forward": None, "flops_training": None}
    cost |= {"examples": rows, "distinct_examples": rows, "device": "cpu", **meter.totals()}
    score = float(outcomes.figure(sums.sum(0)))
    return {
        "state": "finished",
        "score": score,
        "metric": "accuracy",
        "higher_is_better": True,
        "cost": _shared(cost) if task["shared"] else cost,
    }


def _shared(cost: RunCost) -> RunCost:
    """Drop the energy if several runs shared one counter: it cannot be divided among them."""
    return cost | {"energy_joules": None, "energy_source": "not measured", "energy_note": "several runs side by side on one counter"}


if __name__ == "__main__":
    try:
        serve(do)
    except KeyboardInterrupt:  # after a clean checkpoint
        sys.exit(130)
