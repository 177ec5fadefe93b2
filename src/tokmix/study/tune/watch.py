"""Progress of a search: a line for each finished trial, and a status line in between."""

from __future__ import annotations

import sys
import threading
import time

from tokmix.study.tune.chance import Figure
from tokmix.study.tune.report import best
from tokmix.study.tune.trials import Finished, Trials
from tokmix.study.tune.worker import last_entry
from tokmix.training.report import clock

EVERY = 30.0  # seconds between status lines while no trial ends


class Watch(threading.Thread):
    """A thread, because the main one may be training."""

    def __init__(self, trials: Trials, figure: Figure):
        super().__init__(daemon=True)
        self.trials, self.figure = trials, figure
        self.done, self.began, self.last = threading.Event(), time.monotonic(), time.monotonic()
        self.seen = {trial.index for trial in trials.finished()}
        self.start_share = self._share()

    def __enter__(self) -> Watch:
        if self.seen:
            self._say(f"{len(self.seen)} of {self.trials.count} trials are finished already")
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.join()
        self._look()

    def run(self) -> None:
        while not self.done.wait(0.5):
            self._look()

    def _look(self) -> None:
        try:
            finished = self.trials.finished()
            for trial in finished:
                if trial.index not in self.seen:
                    self.seen.add(trial.index)
                    self._say(self._line(trial))
            if time.monotonic() - self.last > EVERY:
                self._say(self._pace(finished))
        except Exception:  # an unreachable database: the workers report it; the next check may work
            return

    def _line(self, trial: Finished) -> str:
        parameters = "  ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in trial.parameters.items()
        )
        note = "  diverged: scored at chance" if trial.result["state"] == "diverged" else ""
        score, spent = f"{self.figure.name} {trial.score:.4f}", clock(trial.result["seconds"])
        return f"trial {trial.index}: {score}  {parameters}  {spent}{note}  [{len(self.seen)} of {self.trials.count}]"

    def _pace(self, finished: list[Finished]) -> str:
        running = ", ".join(f"{index} ({self._part(index):.0%})" for index in self.trials.running())
        share = self._share()
        seconds = (time.monotonic() - self.began) * (1 - share) / max(share - self.start_share, 1e-9)
        line = f"{len(finished)} of {self.trials.count} trials finished; running: {running or 'none'}"
        first = best(finished, self.figure)
        line += f"; best {self.figure.name} {first.score:.4f}" if first is not None else ""
        return line + (f"; about {clock(seconds)} left" if share > self.start_share else "")

    def _share(self) -> float:
        """Share of all work that is done."""
        return (len(self.seen) + sum(self._part(index) for index in self.trials.running())) / self.trials.count

    def _part(self, index: int) -> float:
        entry = last_entry(self.trials.store.out / "trials" / f"{index:04d}" / "log.jsonl")
        return entry["step"] / max(entry["total"], 1) if entry else 0.0

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self.last = time.monotonic()
