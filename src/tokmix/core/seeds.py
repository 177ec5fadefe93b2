"""Weights from a seed, whatever was drawn before and whatever is drawn after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch draws from this seed; afterwards it goes on on a CPU as if nothing had been drawn. One thread at a time: torch
    has one generator for all of them."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
