"""Jobs of kind "encoder_tune": an encoder fine-tuned on a table, or a model of its shape from nothing.

spec    encoder    a folder of DATA/encoders, or null for fresh weights of `settings`
        set        a folder of DATA/tables (token files in the encoder's tokens)
        seeds      of the head, the order of rows and dropout
        settings   of `tokmix train`
        figure     accuracy, matthews, pearson or spearman

The engine and the task are the product's. Figures are computed from numpy alone, so that no further package is needed. The figure is
that of test, else of valid, and is read once; what is kept is chosen by held-out rows of train.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from reproduce.claims import pack
from reproduce.encoder.pretrain import KEPT
from reproduce.job import Context
from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.batches.rows import Batches
from tokmix.data.tokens import TokenFiles
from tokmix.training import encoder
from tokmix.training.answers import network_outputs
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.cost_record import cost_record
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask


class Tuning(TrainingTask):
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, Any]:
        outputs, targets = network_outputs(model, batches, world)
        return figures(self.task, outputs, targets)


def figures(task: str, outputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    if task == "regress":
        return {"rows": len(targets), "pearson": correlation(outputs, targets), "spearman": correlation(ranks(outputs), ranks(targets))}
    said = outputs.argmax(-1)
    return {"rows": len(targets), "accuracy": float((said == targets).mean()), "matthews": matthews(said, targets)}


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's; 0 where one side is constant."""
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def matthews(said: np.ndarray, targets: np.ndarray) -> float:
    """The correlation of two classifications, 0 where one of them is constant."""
    table = np.zeros((int(max(said.max(), targets.max())) + 1,) * 2)
    np.add.at(table, (targets, said), 1)
    right, total, true, told = np.trace(table), table.sum(), table.sum(1), table.sum(0)
    below = np.sqrt((total**2 - (told**2).sum()) * (total**2 - (true**2).sum()))
    return float((right * total - (told * true).sum()) / below) if below else 0.0


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    data = context.data_folder()
    files = TokenFiles(data / "tables" / spec["set"])
    runs: list[dict[str, Any]] = []
    cost: dict[str, Any] = {}
    start = None if spec["encoder"] is None else data / KEPT / spec["encoder"]
    if start is not None and not start.is_dir():
        raise ValueError(f"there is no encoder {start.name} in {KEPT}: pretrain it, or bring it (see the README)")
    for seed in spec["seeds"]:
        given = {**spec["settings"], "train.seed": seed, "train.baseline": False}
        work = Tuning(files, Settings.of(None, given | ({} if start is None else {"train.start": str(start)})))
        found, cost = one(work, World(device=context.device))
        runs.append({"seed": seed, "state": "finished", "score": found[spec["figure"]], **found})
        context.say(f"{spec['encoder']} on {spec['set']}, seed {seed}: {found[spec['figure']]:.4f}")
    return {"runs": runs, "cost": cost, "rows": {name: len(files[name]) for name in files.splits}}


def one(work: Tuning, world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        engine = Engine(work, world, Checkpoints(Path(folder)))
        if work.start is not None:
            engine.begin_with(encoder.weights(work.start, engine.model))
        engine.run()
        assert work.final is not None
        outputs, targets = network_outputs(engine.model, work.batches(work.final, world), world)
        found = figures(work.task, outputs, targets)
        if work.task == "classify":
            right = outputs.argmax(-1) == targets
            found |= {"right": pack(right), "examples": len(right)}
        spent = cost_record(engine)
    return found, {name: spent.get(name) for name in ("seconds", "energy_joules", "parameters", "flops_training", "tokens")}
