"""The lines of log.jsonl to a tracker as well: --report-to tensorboard, wandb, mlflow or trackio.

Each writes into the run's own folder. Nothing is sent over a network unless the tracker's own variables say so: WANDB_MODE=online,
MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID. A resumed run is a new run of the same name there (in TensorBoard the same one, cut at its step).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

Figures = dict[str, float]
Settings = Mapping[str, object]
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}


@dataclass(frozen=True)
class Tracker:
    log: Callable[[Figures, int], object]
    close: Callable[[], object]

    def __call__(self, entry: Mapping[str, object]) -> None:
        """An entry of log.jsonl: losses of some steps, or figures on what is held out."""
        found: dict[str, object] = {"train/loss": entry.get("loss"), "train/tokens": entry.get("tokens"), "train/epoch": entry.get("epoch")}
        held = entry.get("held")
        found |= {f"held/{name}": value for name, value in held.items()} if isinstance(held, dict) else {}
        step = entry["step"]
        assert isinstance(step, int)
        self.log({name: float(value) for name, value in found.items() if isinstance(value, (int, float))}, step)


def check(kind: str | None) -> None:
    """Raise where its package is missing."""
    if kind is not None and importlib.util.find_spec(kind) is None:
        raise ImportError(f"train.report_to={kind!r} needs the package {PACKAGES[kind]}: pip install {PACKAGES[kind]}")


def begin(kind: str, folder: Path, settings: Settings, step: int) -> Tracker:
    """A run called after its folder, from that step on."""
    check(kind)
    folder = folder.resolve()
    name = "-".join(folder.parts[-2:]) if folder.parent.name == "trials" or folder.name == "warmup" else folder.name
    return BEGIN[kind](folder, name, settings, step)


def _tensorboard(folder: Path, name: str, settings: Settings, step: int) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)
    writer.add_text("settings", f"    {json.dumps(settings, default=str)}", step)

    def log(figures: Figures, at: int) -> None:
        for key, value in figures.items():
            writer.add_scalar(key, value, at)

    return Tracker(log, writer.close)


def _wandb(folder: Path, name: str, settings: Settings, step: int) -> Tracker:
    run = _module("wandb").init(
        project=os.environ.get("WANDB_PROJECT", "tokmix"), name=name, dir=str(folder), config=dict(settings),
        mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new",
    )  # fmt: skip
    return Tracker(lambda figures, at: run.log(figures, step=at), run.finish)


def _mlflow(folder: Path, name: str, settings: Settings, step: int) -> Tracker:
    client = _module("mlflow.tracking").MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}"))
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tokmix")
    known = client.get_experiment_by_name(title)
    run = client.create_run(known.experiment_id if known else client.create_experiment(title), run_name=name).info.run_id
    for key, value in settings.items():
        client.log_param(run, key, str(value)[:500])

    def log(figures: Figures, at: int) -> None:
        for key, value in figures.items():
            client.log_metric(run, key, value, step=at)

    return Tracker(log, lambda: client.set_terminated(run))


def _trackio(folder: Path, name: str, settings: Settings, step: int) -> Tracker:
    os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))  # read as the package is imported
    module = _module("trackio")
    run = module.init(project="tokmix", name=name, config=dict(settings), space_id=os.environ.get("TRACKIO_SPACE_ID"), embed=False)
    return Tracker(lambda figures, at: run.log(figures, step=at), run.finish)


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


BEGIN: dict[str, Callable[[Path, str, Settings, int], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}
