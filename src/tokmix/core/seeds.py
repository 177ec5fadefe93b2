"""Weights from a seed, independent of all other random numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch draws from this seed. Afterwards the CPU generator continues from its state before. Only one thread at a time
    runs inside, since torch has one generator for all threads."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
