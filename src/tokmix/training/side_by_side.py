"""Runs of `tokmix train` side by side in one process: each goes from its data to its model folder, and their steps take turns.

A session is a run as a generator. It yields an engine when it is ready to train, and goes on when that engine has ended.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from tokmix.core import checks
from tokmix.training import engine as engines
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings

T = TypeVar("T")
Session = Generator[Engine, None, T]
CHOICES = ("auto", "yes", "no")
MOST = 5  # runs side by side in a process: each has its own weights, graphs and reader of batches


def train_all(sessions: Sequence[Session[T]]) -> list[T | Exception]:
    """Each to its end -> what it returns, or the error that ended it, which leaves the others as they are. Ctrl-C ends all of them,
    each with a checkpoint saved."""
    found: dict[int, T | Exception] = {}
    ready: dict[int, Engine] = {}

    def resume(place: int) -> None:
        try:
            ready[place] = next(sessions[place])
        except StopIteration as end:
            found[place] = end.value
        except Exception as error:
            found[place] = error

    try:
        for place in range(len(sessions)):
            resume(place)
        while ready:
            engines.run(list(ready.values()))
            ended = list(ready)
            ready.clear()
            for place in ended:
                resume(place)
    finally:
        for session in sessions:
            session.close()
    return [found[place] for place in range(len(sessions))]


def train_one(session: Session[T]) -> T:
    (found,) = train_all([session])
    if isinstance(found, Exception):
        raise found
    return found


def runs_at_once(choice: str, gpu: bool, settings: Settings) -> tuple[int, str | None]:
    """How many runs of a study one process trains side by side, and why not more where that was to be. On a GPU small models leave most
    of the device idle; a CPU is busy with one."""
    checks.one_of("side_by_side", choice, CHOICES)
    wanted = choice == "yes" or (choice == "auto" and gpu)
    if wanted and settings.train.minutes is not None:
        return 1, f"runs are trained one by one: train.minutes={settings.train.minutes:g} is the time of a run by itself"
    return (MOST if wanted else 1), None
