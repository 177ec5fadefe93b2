"""How long a run may take: as --minutes says; else, for a table on a CPU, a time that goes with its size.

A default run reads as many epochs as fit, by the pace of a few steps before the first one. It counts the time that it has a core:
beside other work it takes longer and learns the same. The number is chosen once and kept in run.json, so a resumed run repeats the same
steps. `--train.epochs` and `--train.steps` say the length themselves, and nothing is fitted then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tokmix.data.card import Card
from tokmix.data.prepare.targets import LABELLED
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.pacing import FORWARD, SHARE
from tokmix.training.refit import MOST, steps_of
from tokmix.training.report import clock
from tokmix.training.run_record import Choices
from tokmix.training.task import TrainingTask

A_ROW, SHORT = 0.012, 32  # seconds of a default run for each row of so many tokens; a longer row counts for more
LEAST, LONGEST = 60.0, 600.0  # seconds of a default run
ENCODER = 3.0  # times as long from a trained encoder, which is larger
FINISH = 5.0  # seconds for starting, saving and pictures
WARM_UP, FEWEST = 0.4, 5  # share of what is left that a warm-up may take; epochs below which it teaches nothing


def default_seconds(card: Card, encoder: bool = False) -> float:
    train = card.splits["train"]
    return seconds_of(train.rows, train.tokens, encoder)


def seconds_of(rows: int, tokens: int, encoder: bool) -> float:
    """Of a default run on so many rows of train, with so many tokens in all."""
    size = rows * max(1.0, tokens / max(rows, 1) / SHORT)
    return (ENCODER if encoder else 1.0) * min(max(A_ROW * size, LEAST), LONGEST)


class TimeBudget:
    def __init__(self, work: TrainingTask, world: World, chosen: Choices, say: Callable[[str], None], began: float):
        self.work, self.world, self.chosen, self.say, self.began = work, world, chosen, say, began
        said = work.train.minutes or work.train.epochs or work.train.steps
        ours = work.train.fit_time and not said and work.task in LABELLED and world.device.type == "cpu"
        self.seconds = default_seconds(work.card, work.start is not None) if ours else None

    def fit_warm_up(self, engine: Engine) -> bool:
        """Whether there is time for a warm-up; where there is for a part of it, that part. One that was begun goes on."""
        if self.work.train.minutes is not None:
            return engine.checkpoints.last is not None or self._fits_minutes(engine)
        if self.seconds is None or self.work.train.pretrain is not None:
            return True
        epochs = self.work.warm_up_epochs
        fitting = self._epochs(engine, "warm_up_epochs", epochs, WARM_UP)
        if fitting < min(FEWEST, epochs):
            self.say(f"no warm-up: {epochs} epochs do not fit into {clock(self.seconds)} (--train.pretrain {epochs} has them)")
            return False
        self._shorten(engine, fitting / epochs)
        self.work.warm_up_epochs = int(fitting)
        return True

    def _fits_minutes(self, engine: Engine) -> bool:
        minutes = self.work.train.minutes or 0.0
        needed = engine.estimate_pace() * engine.most
        left = 30 * minutes - self._spent()
        if needed > left:
            self.say(
                f"no warm-up: its {self.work.warm_up_epochs} epochs would take about {clock(needed)}, and"
                f" {clock(max(left, 0))} of train.minutes={minutes:g} are left for it"
            )
        return bool(needed <= left)

    def fit(self, engine: Engine) -> None:
        """As many epochs as fit."""
        if self.seconds is None:
            return
        epochs = self.work.default_epochs()
        fitting = self._epochs(engine, "epochs", epochs, 1.0)
        if fitting < epochs:
            self._shorten(engine, fitting / epochs)
            shown = f"{fitting:g} of {epochs} epochs" if fitting >= 1 else f"{100 * fitting:.2g} % of an epoch"
            self.say(f"{shown}: what fits into about {clock(self.seconds)} (--train.epochs {epochs} for all, --minutes for another time)")

    def kept_for_refit(self, engine: Engine) -> float:
        """Seconds of --minutes for the steps on the rows held out."""
        if self.work.train.minutes is None or not (steps := steps_of(engine)):
            return 0.0
        left = 60 * self.work.train.minutes - self._spent()
        return min(steps * engine.estimate_pace(), max(left, 0.0) * MOST / (1 + MOST))

    def _epochs(self, engine: Engine, name: str, most: int, share: float) -> float:
        """Whole ones; of the first epoch hundredths."""

        def choose() -> int:
            steps = engine.most / most  # of an epoch
            pace = self._alone(engine.estimate_pace)
            a_token = pace * steps / max(self.work.tokens_of("train"), 1)
            rest = FORWARD * a_token * (self.work.tokens_of("final") + 2 * self.work.tokens_of("held"))
            left = share * ((self.seconds or 0.0) - self._spent() - rest - FINISH)
            left -= min(steps_of(engine) * pace, left * MOST / (1 + MOST))
            fitting = left / (pace * steps * (1 + SHARE))
            return max(1, 100 * int(fitting) if fitting >= 1 else int(100 * fitting))

        return min(most, self.chosen.get(name, choose) / 100)

    def _shorten(self, engine: Engine, share: float) -> None:
        engine.most = max(1, round(engine.most * share))
        engine.progress.total = engine.most

    def _alone(self, measure: Callable[[], float]) -> float:
        """What `measure` would say if nothing else ran on this machine: less where this process waited for a core."""
        wall, core = time.monotonic(), time.process_time()
        found = measure()
        wall, core = time.monotonic() - wall, time.process_time() - core
        return found * self.world.agree(min(1.0, core / max(wall, 1e-9)))

    def _spent(self) -> float:
        """Seconds since the start; by default only those with a core."""
        gone = time.monotonic() - self.began
        return self.world.agree(gone if self.seconds is None else min(gone, time.process_time()))
