"""Progress of a run, which a checkpoint holds in addition to tensors, and the exceptions that end a run early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokmix.training.meter import Brief, Measured


@dataclass
class Progress:
    step: int = 0  # steps done
    total: int = 0  # steps of the whole run; with --minutes an estimate that improves
    epoch: int = 0
    inner: int = 0  # batches of this epoch that are done
    seconds: float = 0.0  # seconds of the loop: steps, evaluations, saving
    spent: float = 0.0  # seconds before the loop: preparation, trial, warm-up
    evaluation_seconds: float = 0.0
    tokens: int = 0
    evaluations: int = 0  # planned; 0: not yet
    held_share: float = 1.0  # share of the held-out rows that an evaluation reads
    best_score: float | None = None
    best_step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)  # one entry per evaluation
    measured: Measured = field(default_factory=Measured)  # wall time, memory and energy so far: see meter.py
    losses: list[float] = field(default_factory=list)  # of the steps since the last line of the log


class Entry(Brief, total=False):
    """A line of log.jsonl: losses of some steps, figures on held-out rows, or at the end the cost of the run."""

    step: int
    total: int
    epoch: int
    loss: float  # the mean of losses
    losses: list[float]
    tokens: int
    seconds: float
    held: dict[str, float]
    cost: Mapping[str, object]


class Diverged(ValueError):
    """The loss or the gradient is not a finite number."""

    cost: dict[str, Any] | None = None  # the cost of the run so far, if train.run raised it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, raised after a clean checkpoint."""
