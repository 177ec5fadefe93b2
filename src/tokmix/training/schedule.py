"""How long a run is, how the learning rate goes over it, and how it is asked to end early."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tokmix.training.distributed import World
from tokmix.training.task import TrainingTask


def planned_steps(work: TrainingTask, world: World) -> int:
    train = work.train
    if train.steps is not None:
        return train.steps
    return max(1, work.train_batches(world).steps(0) * (train.epochs or work.default_epochs()) // train.accumulate)


def learning_rate(step: int, total: int, lr: float, warmup: float, final: float) -> float:
    """Of step 0 .. total - 1: a rise, then a cosine that ends at final * lr."""
    rise = min(max(1, round(warmup * total)), 1000)
    if step < rise:
        return lr * (step + 1) / rise
    share = min((step - rise) / max(1, total - rise), 1.0)
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share)))


@contextmanager
def on_signal(ask: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C (or request to end) asks; a second one ends at once, as it would without us."""
    before: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        ask()
        signal.signal(number, before[number])

    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, note)
    except ValueError:  # not the main thread: whoever owns that one decides
        before.clear()
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
