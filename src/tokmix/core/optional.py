"""Optional packages: imported where they are used, with an error that says how to install them."""

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
    """The package, or an error of one line that names what needs it and how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{what} needs the package {package.split('.')[0]}: {_HOW}") from error
