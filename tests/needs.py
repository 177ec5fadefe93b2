"""Programs that some tests need and a machine may lack. `make test-deps` installs them.

A test that needs one is skipped with the reason where it is missing; with CI=true it fails, so that CI cannot pass by skipping.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

# program -> (what it is, names on the PATH, places beside it)
TOOLS = {
    "postgres": ("PostgreSQL's server", ("postgres",), ("/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres")),
    "chromium": ("a Chromium browser", ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"), ()),
}


def find(name: str) -> Path | None:
    _, names, places = TOOLS[name]
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        found = next((path for place in places for path in sorted(glob.glob(place), reverse=True)), None)
    return None if found is None else Path(found)


def memory(count: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """So many numbers of which few are ever touched; a machine that does not even promise them skips the test."""
    try:
        return torch.empty(count, dtype=dtype, device=device)
    except RuntimeError:
        pytest.skip(f"no room for {count * dtype.itemsize / 2**30:.1f} GiB")


def tool(name: str) -> Path:
    """Where the program is; without it the test ends here."""
    found = find(name)
    if found is None:
        missing(f"{TOOLS[name][0]} is not installed: make test-deps")
    return found


def package(name: str) -> Any:
    """The Python package; without it the test ends here."""
    if importlib.util.find_spec(name) is None:
        missing(f"the package {name} is not installed: pip install 'tokmix[test]'")
    return importlib.import_module(name)


def missing(reason: str) -> NoReturn:
    """End the test: skipped on a person's machine, failed in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (with CI=true nothing that was asked for may be missing)")
    pytest.skip(reason)
