"""tokmix: token mixing at low cost. Everything public is here and loaded on first use, so that importing is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tokmix.core import moved
from tokmix.core.checks import nearest

__version__ = "0.1.0"

_HOME = {
    "Segments": "core.segments",
    "Rows": "core.segments",
    "Mixer": "core.mixer",
    "Cost": "core.mixer",
    "register": "core.mixer",
    "create": "core.mixer",
    "mixers": "core.mixer",
    "RowMixer": "core.rowmixer",
    "ModelConfig": "core.model",
    "Model": "core.model",
    "generate": "core.sampling",
    "match_parameters": "core.budget",
    "swap_attention": "core.adapt",
    "convert": "core.convert",
    "train": "api.fit",
    "distill": "api.fit",
    "embed_train": "api.fit",
    "pretrain": "api.fit",
    "transfer": "api.transfer",
    "Run": "api.fit",
    "load": "api.model",
    "TrainedModel": "api.model",
    "tune": "api.search",
    "compare": "api.search",
    "cost": "api.costs",
}

__all__ = [  # spelled out, so that type checkers see what is exported; a test compares it with _HOME
    "__version__",
    "Segments",
    "Rows",
    "Mixer",
    "Cost",
    "register",
    "create",
    "mixers",
    "RowMixer",
    "ModelConfig",
    "Model",
    "generate",
    "match_parameters",
    "swap_attention",
    "convert",
    "train",
    "distill",
    "embed_train",
    "pretrain",
    "transfer",
    "Run",
    "load",
    "TrainedModel",
    "tune",
    "compare",
    "cost",
]

if TYPE_CHECKING:
    from tokmix.api.costs import cost
    from tokmix.api.fit import Run, distill, embed_train, pretrain, train
    from tokmix.api.model import TrainedModel, load
    from tokmix.api.search import compare, tune
    from tokmix.api.transfer import transfer
    from tokmix.core.adapt import swap_attention
    from tokmix.core.budget import match_parameters
    from tokmix.core.convert import convert
    from tokmix.core.mixer import Cost, Mixer, create, mixers, register
    from tokmix.core.model import Model, ModelConfig
    from tokmix.core.rowmixer import RowMixer
    from tokmix.core.sampling import generate
    from tokmix.core.segments import Rows, Segments

moved.install()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tokmix' has no attribute {name!r}{nearest(name, _HOME)}")
    try:
        value = getattr(importlib.import_module(f"tokmix.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        extra = "lab" if _HOME[name].startswith("api.") else "torch"
        raise ImportError(f"tokmix.{name} needs torch: pip install 'tokmix[{extra}]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
