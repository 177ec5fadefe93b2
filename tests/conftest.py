"""For every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tokmix
from tokmix import mixer as registry


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more, and sums come out the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """What a test registers is forgotten again. The built-in mixers are loaded first: they register themselves only once."""
    tokmix.mixers()
    known = dict(registry._REGISTRY)
    yield
    registry._REGISTRY.clear()
    registry._REGISTRY.update(known)
