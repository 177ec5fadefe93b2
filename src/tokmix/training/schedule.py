"""Length of a run, its learning rate over time, and signals that end it early."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tokmix.training.distributed import World
from tokmix.training.task import TrainingTask


@dataclass(frozen=True)
class Growth:
    """Batches per step: `most`, or growing from one to `most` over the first `share` of the steps."""

    most: int
    share: float

    def at(self, step: int, total: int) -> int:
        rise = (step + 1) / (self.share * total) if self.share else 1.0
        return 1 + round((self.most - 1) * min(1.0, rise))

    def mean(self, start: float = 0.0, stop: float = 1.0) -> float:
        """Mean number of batches per step in a part of the run; start, stop: shares of the steps."""
        if not self.share or stop <= start:
            return float(self.most)
        area = lambda end: min(end, self.share) ** 2 / (2 * self.share) + max(end - self.share, 0.0)
        return 1 + (self.most - 1) * (area(stop) - area(start)) / (stop - start)

    def to_come(self, done: float) -> float:
        """Mean batches per step after this share of the steps, divided by the mean before it."""
        return self.mean(done) / self.mean(0.0, done)


def planned_steps(work: TrainingTask, world: World) -> int:
    train = work.train
    if train.steps is not None:
        return train.steps
    batches = work.train_batches(world).steps(0) * (train.epochs or work.default_epochs())
    return max(1, int(batches / Growth(train.accumulate, train.grow).mean()))


def learning_rate(step: int, total: int, lr: float, warmup: float, final: float, schedule: str = "cosine") -> float:
    """Learning rate of step 0 .. total - 1: a linear rise, then a fall to final * lr, as a cosine or a straight line (triangle)."""
    rise = max(1, round(warmup * total))
    rise = rise if schedule == "triangle" else min(rise, 1000)
    if step < rise:
        return lr * (step + 1) / rise
    share = min((step - rise) / max(1, total - rise), 1.0)
    if schedule == "triangle":
        return lr * (final + (1 - final) * (1 - share))
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share)))


@contextmanager
def on_signal(ask: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) requests the end; a second one ends at once, as without this handler."""
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def note(number: int, frame: FrameType | None) -> None:
        ask()
        signal.signal(number, before[number])

    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, note)
    except ValueError:  # not the main thread, which alone may set handlers
        before.clear()
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
