"""Packages beyond torch: imported where they are needed, with an error that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

_HOW = "pip install 'tokmix[lab]'"

try:
    import numpy as np
except ImportError as error:  # pragma: no cover - needs an interpreter without numpy
    raise ImportError(f"token files need the package numpy: {_HOW}") from error

__all__ = ["need", "np"]


def need(package: str, what: str) -> Any:
    """The package, or one line that says what wanted it and how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{what} needs the package {package.split('.')[0]}: {_HOW}") from error
