"""A process that does the runs it is told: `python -m tokmix.study.compare.worker`, fed by a pool. When it is told to end in the middle
of a run, the run saves a checkpoint first.

One run folder has one owner at a time; a second one waits for the first, and then finds the run finished.
"""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from tokmix.runs.pool_server import serve


def do(task: dict[str, Any]) -> dict[str, Any]:
    """The result of a run, or why there is none. A run that diverged would do so again: that is its result."""
    from tokmix.runs.locks import holding
    from tokmix.study.compare.result import NAME, RunResult
    from tokmix.training.progress import Diverged

    folder = Path(task["out"])
    try:
        with holding(folder.with_name(f".{folder.name}.lock")):  # a second worker waits, and then finds the run finished
            if (folder / NAME).is_file():
                return asdict(RunResult.read(folder / NAME))
            result = _fit_bag(task, folder) if task["kind"] == "bag" else _train(task, folder)
            if not math.isfinite(result["score"]):
                raise Diverged(f"the {result['metric']} is not a finite number")
            RunResult(**result).write(folder / NAME)
            return result
    except Diverged as error:
        failed = RunResult("failed", error=str(error))
        failed.write(failure_file(folder))
        return asdict(failed)
    except Exception as error:
        return {"state": "failed", "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def failure_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".failed.json")


def _train(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    from tokmix.data.tokens import TokenFiles
    from tokmix.study.compare import outcomes
    from tokmix.training import model_folder, train
    from tokmix.training.distributed import join_world
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask, main_figure

    settings = Settings.of(None, task["settings"] | {"train.device": task["device"]})
    record = train.run(task["data"], folder, settings, resume=True, imports=task["imports"], quiet=True)
    with join_world(settings.train.device) as world:
        trained = model_folder.load(folder / "model", world.device)
        sums = outcomes.measure(TrainingTask(TokenFiles(task["data"]), settings), trained.model, record["split"], world)
    outcomes.save(folder, sums)
    for part in ("checkpoints", "warmup"):  # the model is saved: nothing is left to resume
        shutil.rmtree(folder / part, ignore_errors=True)
    metric, sign = main_figure(record["task"], record["figures"])
    cost = _shared(record["cost"]) if task["shared"] else record["cost"]
    return {"state": "finished", "score": float(record["figures"][metric]), "metric": metric, "higher_is_better": sign > 0, "cost": cost}


def _fit_bag(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fitted on the very rows that the stacks are trained on."""
    import torch

    from tokmix.data.tokens import TokenFiles
    from tokmix.study.compare import outcomes
    from tokmix.training import baseline
    from tokmix.training.meter import Meter
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask

    files = TokenFiles(task["data"])
    work, split, meter = TrainingTask(files, Settings.of(None, task["settings"])), task["split"], Meter(torch.device("cpu"))
    import_module("sklearn.feature_extraction.text")  # not part of what the fit takes
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
    cost: dict[str, Any] = {"parameters": (features + 1) * (1 if classes == 2 else classes), "flops_forward": None, "flops_training": None}
    cost |= {"examples": rows, "distinct_examples": rows, "device": "cpu", **meter.totals()}
    score = float(outcomes.figure(sums.sum(0)))
    return {
        "state": "finished",
        "score": score,
        "metric": "accuracy",
        "higher_is_better": True,
        "cost": _shared(cost) if task["shared"] else cost,
    }


def _shared(cost: dict[str, Any]) -> dict[str, Any]:
    """A counter that several runs drew on at a time tells nothing about one of them."""
    return cost | {"energy_joules": None, "energy_source": "not measured", "energy_note": "several runs side by side on one counter"}


if __name__ == "__main__":
    try:
        serve(do)
    except KeyboardInterrupt:  # after a clean checkpoint
        sys.exit(130)
