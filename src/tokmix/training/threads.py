"""How many threads torch uses on a CPU: the user's number, or the fastest of a short trial.

More threads than idle cores make a small step many times slower, since every product waits for its slowest thread. Sums in another
order are other numbers, so the choice is recorded in run.json and a resumed run takes it from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

VARIABLE = "OMP_NUM_THREADS"
GAIN = 0.95  # more threads are taken where they need at most this share of the time of fewer


def candidates() -> list[int]:
    """1, half and all of the threads that torch would use."""
    most = torch.get_num_threads()
    return sorted({1, max(1, most // 2), most})


def given(setting: int | None) -> int | None:
    """What the user asked for: the setting, else the environment variable."""
    if setting is not None:
        return setting
    words = os.environ.get(VARIABLE, "").split(",")[0]
    return int(words) if words.isdigit() and int(words) > 0 else None


def choose(time_step: Callable[[], float], counts: Sequence[int], rounds: int = 3, most_seconds: float = 3.0) -> int:
    """The count with the shortest steps. The counts take turns, so that a change of load meets all of them; the first round warms up."""
    before, spent = torch.get_num_threads(), dict.fromkeys(counts, 0.0)
    try:
        total = 0.0
        for turn in range(rounds + 1):
            for count in counts:
                torch.set_num_threads(count)
                seconds = time_step()
                total += seconds
                spent[count] += seconds if turn else 0.0
            if turn and total > most_seconds:
                break
    finally:
        torch.set_num_threads(before)
    best = min(counts)
    for count in sorted(counts):
        if spent[count] < GAIN * spent[best]:
            best = count
    return best


@contextmanager
def restored() -> Iterator[None]:
    """The number of threads is again what it was."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
