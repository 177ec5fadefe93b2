"""Where a run stands, which a checkpoint holds beside tensors, and how a run may end early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokmix.training.meter import Brief, Measured


@dataclass
class Progress:
    step: int = 0  # steps done
    total: int = 0  # steps of the whole run; with --minutes an estimate that gets better
    epoch: int = 0
    inner: int = 0  # batches of this epoch that are done
    seconds: float = 0.0  # of the loop: steps, evaluations, saving
    spent: float = 0.0  # before the loop: preparation, trial, warm-up
    evaluation_seconds: float = 0.0
    tokens: int = 0
    evaluations: int = 0  # planned; 0: not yet
    held_share: float = 1.0  # of the held-out rows, how much an evaluation reads
    best_score: float | None = None
    best_step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)  # one entry an evaluation
    measured: Measured = field(default_factory=Measured)  # wall time, memory and energy so far: see meter.py
    losses: list[float] = field(default_factory=list)  # of the steps since the last line of the log


class Entry(Brief, total=False):
    """A line of log.jsonl: losses of some steps, or figures on what is held out, or at the end what the run cost."""

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
    """The loss or the gradient is no finite number."""

    cost: dict[str, Any] | None = None  # what the run had cost by then, where train.run raised it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a request to end, after a clean checkpoint."""
