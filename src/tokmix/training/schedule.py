"""How long a run is, how the learning rate goes over it, and how it is asked to end early."""

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
    """How many batches a step has: `most`, or, over the first `share` of the steps, from one to that."""

    most: int
    share: float

    def at(self, step: int, total: int) -> int:
        rise = (step + 1) / (self.share * total) if self.share else 1.0
        return 1 + round((self.most - 1) * min(1.0, rise))

    def mean(self, start: float = 0.0, stop: float = 1.0) -> float:
        """Batches of the mean step of a part of the run; start, stop: shares of the steps."""
        if not self.share or stop <= start:
            return float(self.most)
        area = lambda end: min(end, self.share) ** 2 / (2 * self.share) + max(end - self.share, 0.0)
        return 1 + (self.most - 1) * (area(stop) - area(start)) / (stop - start)

    def to_come(self, done: float) -> float:
        """Batches of a step after that share of the steps, over those of one before it."""
        return self.mean(done) / self.mean(0.0, done)


def planned_steps(work: TrainingTask, world: World) -> int:
    train = work.train
    if train.steps is not None:
        return train.steps
    batches = work.train_batches(world).steps(0) * (train.epochs or work.default_epochs())
    return max(1, int(batches / Growth(train.accumulate, train.grow).mean()))


def learning_rate(step: int, total: int, lr: float, warmup: float, final: float, schedule: str = "cosine") -> float:
    """Of step 0 .. total - 1: a rise, then a fall that ends at final * lr: a cosine, or a straight line (triangle)."""
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
    """The first Ctrl-C (or request to end) asks; a second one ends at once, as it would without us."""
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def note(number: int, frame: FrameType | None) -> None:
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
