"""The cost of a run: Cost(R) = E · D · H (Schwartz et al. 2020), and measured time, memory and energy.

E   FLOPs of one example: matrix products, forward and backward, averaged over the examples that were read, each at its own length
D   examples read: rows, or windows of a running text, once for every time they were read
H   trials: 1 for a run by itself

Batches are a function of (seed, epoch, step), so what was read follows from where the run ended; no counter has to survive a kill.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.batches.rows import Batches, RowBatches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.order import Shuffle
from tokmix.runs.machine import machine, versions
from tokmix.training.engine import Engine
from tokmix.training.meter import NOT_MEASURED, Measured, add_up
from tokmix.training.task import TrainingTask


@dataclass(frozen=True)
class Read:
    """The examples that training read, over all processes."""

    lengths: Counter[int]  # length -> examples of that length
    distinct: int  # examples of an epoch, or of what was read of the first one

    @property
    def examples(self) -> int:
        return self.lengths.total()

    @property
    def tokens(self) -> int:
        """Without padding."""
        return sum(length * count for length, count in self.lengths.items())


def examples_read(batches: Batches, epoch: int, inner: int) -> Read:
    """Count examples of `epoch` whole epochs and the first `inner` steps of the next."""
    if inner and inner == batches.steps(epoch):
        epoch, inner = epoch + 1, 0
    lengths_of = _rows if isinstance(batches, RowBatches) else _windows
    part = _count(lengths_of(batches, epoch, inner))
    if not epoch:
        return Read(part, part.total())
    first = _count(lengths_of(batches, 0, None))
    if isinstance(batches, RowBatches):  # every epoch has the same rows
        return Read(Counter({n: count * epoch for n, count in first.items()}) + part, first.total())
    return Read(sum((_count(lengths_of(batches, whole, None)) for whole in range(1, epoch)), first) + part, first.total())


def _rows(batches: Batches, epoch: int, steps: int | None) -> np.ndarray:
    """Lengths of the rows in the first steps of an epoch (None: in all)."""
    assert isinstance(batches, RowBatches)
    if steps is None:
        rows = np.arange(batches.n) if batches.rows is None else batches.rows
    else:
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(batches.global_rows(epoch, step) for step in range(steps))])
    return batches.split.lengths(rows)


def _windows(batches: Batches, epoch: int, steps: int | None) -> np.ndarray:
    """The same for windows. The first and the last may be short."""
    assert isinstance(batches, WindowBatches)
    count = batches.windows(epoch)
    windows = np.arange(count if steps is None else min(steps * batches.size, count))
    if batches.shuffle and steps is not None:
        windows = Shuffle(count, batches.seed, epoch)(windows)
    bounds = batches.bounds(epoch, windows)
    return bounds[:, 1] - bounds[:, 0]


def _count(lengths: np.ndarray) -> Counter[int]:
    values, counts = np.unique(lengths, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def flops(work: TrainingTask, model: Model, read: Read) -> dict[str, int]:
    """FLOPs per example on average. flops_forward and flops_training count matrix products; elementwise work is separate."""
    costs = [(model.cost(length), count) for length, count in read.lengths.items()]
    examples = max(read.examples, 1)
    return {
        "flops_forward": round(sum(cost.matmul * count for cost, count in costs) / examples),
        "flops_pointwise": round(sum(cost.pointwise * count for cost, count in costs) / examples),
        "flops_training": round(sum(work.training_flops(model, length) * count for length, count in read.lengths.items()) / examples),
    }


def cost_so_far(engine: Engine) -> dict[str, Any]:
    """The cost of a run that ends early. Other processes are not contacted: they may be gone."""
    engine.meter.stop()
    measured = engine.meter.totals()
    if engine.world.size > 1:
        measured |= {"energy_joules": None, "energy_source": NOT_MEASURED, "energy_note": "the processes did not end together"}
    engine.progress.measured = measured
    return cost_record(engine)


def cost_record(engine: Engine) -> dict[str, Any]:
    """The part `cost` of a run's record."""
    work, card, progress, world = engine.work, engine.work.card, engine.progress, engine.world
    length = card.splits["train"].lengths["p50"] if not card.stream else work.config.max_len
    typical = engine.model.cost(length)
    read = examples_read(engine.batches, progress.epoch, progress.inner)
    return {
        "parameters": engine.model.parameter_count(),
        "length": length,
        "flops": typical.matmul + typical.pointwise,
        **flops(work, engine.model, read),
        "examples": read.examples,
        "distinct_examples": read.distinct,
        "tokens": read.tokens,
        "mean_length": round(read.tokens / max(read.examples, 1), 3),
        "trials": 1,
        "steps": progress.step,
        **progress.measured,
        "processes": world.size,
        "side_by_side": engine.side_by_side,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "machine": machine(),
        "versions": versions(),
    }


def with_warm_up(cost: dict[str, Any], warm: dict[str, Any] | None) -> dict[str, Any]:
    """Both parts of a run as one: examples of both, mean FLOPs per example, and the first part under warm_up."""
    if warm is None:
        return cost
    examples = cost["examples"] + warm["examples"]
    mean = {
        name: round((cost[name] * cost["examples"] + warm[name] * warm["examples"]) / max(examples, 1))
        for name in ("flops_forward", "flops_pointwise", "flops_training")
    }
    tokens = cost["tokens"] + warm["tokens"]
    summed = {
        "examples": examples,
        "tokens": tokens,
        "mean_length": round(tokens / max(examples, 1), 3),
        "steps": cost["steps"] + warm["steps"],
    }
    kept = ("flops_training", "examples", "tokens", "steps", "seconds", "energy_joules")
    both = add_up(_measured(warm), _measured(cost))
    return {**cost, **both, **mean, **summed, "warm_up": {name: warm[name] for name in kept}}


def _measured(cost: dict[str, Any]) -> Measured:
    """The measured values that can be added up."""
    return {
        "seconds": cost["seconds"],
        "peak_memory_bytes": cost["peak_memory_bytes"],
        "energy_joules": cost["energy_joules"],
        "energy_source": cost["energy_source"],
        "energy_note": cost["energy_note"],
    }
