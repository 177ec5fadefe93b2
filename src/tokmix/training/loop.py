"""The training loop: a step of each run in turn. `tokmix train` is one run; studies and paper runs train several side by side.

    runs                          what a step of them is
    Engine (engine.py)            a prepared folder: `train`, its warm-up, `tune`, `compare`
    Member (replicas.py)          rows in memory: shapes, synthetic tasks, paper runs

Runs share nothing: each has its own model, optimizer, batches and seeds, so each gives the numbers that it gives alone. On a GPU a
step is a CUDA graph, which the host starts and does not wait for. Runs with a stream each fill the device together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Run(Protocol):
    def advance(self) -> bool: ...  # one step, and what is due after it -> whether there are more


def train(runs: Sequence[Run], after: Callable[[], bool] = lambda: False) -> None:
    """Until all runs have ended, or `after`, called when each has made a step, returns True."""
    going = list(runs)
    while going:
        going = [run for run in going if run.advance()]
        if after():
            return
