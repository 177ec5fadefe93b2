"""The tensors of a run: by name for a checkpoint, and back.

weights.   first. second. momentum. (the optimizer's)   average. (the running mean)   best. (the best weights so far)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tokmix.core.model import Model
from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated


def changed_by_steps(model: Model, average: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a step changes, beside the optimizer's."""
    return [*model.parameters(), *model.buffers(), *average]


def tensors_of(model: Model, optimizers: Optimizers, average: Sequence[Tensor], best: dict[str, Tensor] | None) -> dict[str, Tensor]:
    tensors = {f"weights.{name}": tensor for name, tensor in model.state_dict().items()} | optimizers.state()
    for (name, _), mean in zip(model.named_parameters(), average, strict=bool(average)):
        tensors[f"average.{name}"] = mean
    return tensors | {f"best.{name}": tensor for name, tensor in (best or {}).items()}


def load(
    tensors: dict[str, Tensor], step: int, model: Model, optimizers: Optimizers, average: Sequence[Tensor], sharding: Replicated
) -> dict[str, Tensor] | None:
    """Into the model, the optimizers and the mean -> the best weights"""
    known = model.state_dict()
    model.load_state_dict({name: sharding.like(known[name], full) for name, full in _part(tensors, "weights.").items()})
    optimizers.load(tensors, step, sharding.like)
    averages = _part(tensors, "average.")
    for (name, _), mean in zip(model.named_parameters(), average, strict=bool(average)):
        mean.copy_(sharding.like(mean, averages[name]))
    return {name: sharding.like(known[name], full).clone() for name, full in _part(tensors, "best.").items()} or None


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
