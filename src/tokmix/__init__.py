"""tokmix: token mixing at low cost. Everything public is here and loaded on first use, so that importing is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Segments": "segments",
    "Rows": "segments",
    "Mixer": "mixer",
    "Cost": "mixer",
    "register": "mixer",
    "create": "mixer",
    "mixers": "mixer",
    "RowMixer": "rowmixer",
    "ModelConfig": "model",
    "Model": "model",
    "generate": "sampling",
    "match_parameters": "budget",
    "swap_attention": "adapt",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from tokmix.adapt import swap_attention
    from tokmix.budget import match_parameters
    from tokmix.mixer import Cost, Mixer, create, mixers, register
    from tokmix.model import Model, ModelConfig
    from tokmix.rowmixer import RowMixer
    from tokmix.sampling import generate
    from tokmix.segments import Rows, Segments


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokmix' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tokmix.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
