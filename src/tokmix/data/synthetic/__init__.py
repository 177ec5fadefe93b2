"""Synthetic tasks for causal mixers: the six of MAD (Poli et al. 2024) and multi-query associative recall (Arora et al. 2023).

    task = synthetic.create("noisy_recall", noise=0.4)
    train, test = task.split(seed=0)         # inputs and targets [n, T], -100 where nothing is scored
    print(task.show(test, row=0), task.chance)

Written from the published definitions; docs/synthetic.md lists what they leave open and our choices.
"""

from __future__ import annotations

import typing
from dataclasses import fields

from tokmix.core import checks
from tokmix.data.synthetic.compression import Compression
from tokmix.data.synthetic.copying import SelectiveCopying
from tokmix.data.synthetic.fuzzy import FuzzyRecall
from tokmix.data.synthetic.memorisation import Memorisation
from tokmix.data.synthetic.mqar import MultiQueryRecall
from tokmix.data.synthetic.recall import InContextRecall, NoisyRecall
from tokmix.data.synthetic.task import Examples, Task

TASKS: dict[str, type[Task]] = {
    "in_context_recall": InContextRecall,
    "noisy_recall": NoisyRecall,
    "fuzzy_recall": FuzzyRecall,
    "selective_copying": SelectiveCopying,
    "memorisation": Memorisation,
    "compression": Compression,
    "mqar": MultiQueryRecall,
}
MAD = tuple(name for name in TASKS if name != "mqar")

__all__ = ["MAD", "TASKS", "Examples", "Task", "create", "tasks"]


def tasks() -> list[str]:
    """Names of the tasks."""
    return list(TASKS)


def create(name: str, **settings: typing.Any) -> Task:
    """A task with its base settings, except for those given."""
    checks.one_of("task", name, TASKS)
    known = [field.name for field in fields(TASKS[name])]
    for given in settings:
        if given not in known:
            raise ValueError(f"task {name!r} has no setting {given!r}; its settings: {', '.join(known)}{checks.nearest(given, known)}")
    return TASKS[name](**settings)


def __getattr__(name: str) -> typing.NoReturn:
    if name == "run":
        raise ImportError("tokmix.data.synthetic.run is now tokmix.training.synthetic: from tokmix.training import synthetic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
