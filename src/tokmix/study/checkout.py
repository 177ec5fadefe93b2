"""Finds `reproduce/` (the papers' recipes and results) and `bench/`, which are in a checkout and not in the wheel."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

_NAME = "reproduce"


def found() -> Path | None:
    """The working directory or the checkout that this package was installed from, whichever holds `reproduce/`."""
    places = (Path.cwd(), Path(__file__).parents[3])
    return next((place for place in places if (place / _NAME / "item.py").is_file()), None)


def root(what: str = "the papers' recipes and results") -> Path:
    if (place := found()) is not None:
        return place
    raise ValueError(f"the wheel does not hold {what}: clone the repository, `pip install -e '.[lab]'` there and run this in it")


def make_importable(what: str = "the papers' recipes and results") -> None:
    """Put `reproduce` and `bench` on the path, for this process and for its workers."""
    place = str(root(what))
    if place not in sys.path:
        sys.path.insert(0, place)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if place not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([place, *filter(None, known)])


def load(module: str, what: str = "the papers' recipes and results") -> ModuleType:
    """`reproduce.MODULE`"""
    make_importable(what)
    return importlib.import_module(f"{_NAME}.{module}")
