"""The tensors of a run: by name for a checkpoint, and back.

weights.   first. second. momentum. (the optimizer's)   average. (the running mean)   best. (the best weights so far)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokmix.core.model import Model
from tokmix.training.checkpoint import Stored
from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated


def tensors_of(model: Model, optimizers: Optimizers, average: Sequence[Tensor], best: dict[str, Tensor] | None) -> dict[str, Tensor]:
    tensors = {f"weights.{name}": tensor for name, tensor in model.state_dict().items()} | optimizers.state()
    for (name, _), mean in zip(model.named_parameters(), average, strict=bool(average)):
        tensors[f"average.{name}"] = mean
    return tensors | {f"best.{name}": tensor for name, tensor in (best or {}).items()}


def load(
    stored: Stored, step: int, model: Model, optimizers: Optimizers, average: Sequence[Tensor], sharding: Replicated
) -> dict[str, Tensor] | None:
    """From a checkpoint into the model, the optimizers and the mean -> the best weights"""
    optimizers.allocate(stored.shapes, step)
    known = model.state_dict()
    best = {name: torch.empty_like(tensor) for name, tensor in known.items() if f"best.{name}" in stored.shapes}
    stored.read(tensors_of(model, optimizers, average, best), sharding.like)
    return best or None
