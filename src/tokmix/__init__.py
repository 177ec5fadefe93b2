"""tokmix: token mixing at low cost. Everything public is here and loaded on first use, so that importing is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tokmix.core import moved
from tokmix.core.checks import nearest

__version__ = "0.1.0"

_MODULES = {
    "core.segments": ("Segments", "Rows"),
    "core.mixer": ("Mixer", "Cost", "register", "create", "mixers"),
    "core.rowmixer": ("RowMixer",),
    "core.model": ("ModelConfig", "Model"),
    "core.sampling": ("generate",),
    "core.budget": ("match_parameters",),
    "core.adapt": ("swap_attention",),
    "core.convert": ("convert",),
    "api.fit": ("train", "distill", "embed_train", "pretrain", "Run"),
    "api.transfer": ("transfer",),
    "api.model": ("load", "TrainedModel"),
    "api.search": ("tune", "compare"),
    "api.costs": ("cost",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [  # spelled out, so that type checkers see what is exported; a test compares it with _HOME
    "__version__", "Segments", "Rows", "Mixer", "Cost", "register", "create", "mixers", "RowMixer", "ModelConfig", "Model", "generate",
    "match_parameters", "swap_attention", "convert", "train", "distill", "embed_train", "pretrain", "Run", "transfer", "load",
    "TrainedModel", "tune", "compare", "cost",
]  # fmt: skip

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
