"""For every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import tokmix
from tokmix.core import mixer as registry

if TYPE_CHECKING:
    from tests.serving import Server


SLOW_FIXTURES = {"browser", "database"}  # Chromium and PostgreSQL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


os.environ.setdefault("TOKMIX_FROM", "none")  # a shipped encoder that is installed here is for the tests that ask for it


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more, and sums come out the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """--threads is for one test."""
    before = torch.get_num_threads()
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


# --- a run of the lab ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.lab import train_films

    return train_films(tmp_path_factory.mktemp("lab"))


# --- the models of play and their servers: imported where they are used, as they need more than torch -----------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.serving import train_models

    return train_models(tmp_path_factory.mktemp("play"))


@pytest.fixture(scope="module")
def films(folder: Path) -> Iterator[Server]:
    from tests.serving import serve_films

    with serve_films(folder) as server:
        yield server


@pytest.fixture(scope="module")
def writer(folder: Path) -> Iterator[Server]:
    from tests.serving import serve_writer

    with serve_writer(folder) as server:
        yield server
