"""A model's shapes without its numbers.

torch draws random numbers on the meta device by code that imports its compiler, which takes longer than `import torch`. Nothing is
drawn here. A mixer that draws by `torch.empty(...).normal_(std=...)` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tokmix.core.model import Model, ModelConfig

IN_PLACE = {torch.Tensor.normal_, torch.Tensor.uniform_}


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        given = kwargs or {}
        if function in IN_PLACE or getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return function(*args, **given)


def outline(config: ModelConfig) -> Model:
    """The model on the meta device. ValueError for a config that no model has."""
    with torch.device("meta"), _Undrawn():
        return Model(config)


def part_of(model: Model, config: ModelConfig) -> Model:
    """The model of this config, with the weights of one that has more."""
    part, weights = outline(config), model.state_dict()
    part.load_state_dict({name: weights[name] for name in part.state_dict()}, assign=True)
    return part
