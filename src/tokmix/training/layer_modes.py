"""Other ways for a model's layers to run: compiled, or a second time in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tokmix.core.block import Layer

SHAPES = 64  # compiled versions of a layer that are kept


def compile_layers(model: nn.Module, backend: str = "inductor") -> None:
    """Compile layer by layer: layers of one kind share the compiled code, and elementwise work becomes few kernels."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    for layer in layers_of(model):
        layer.compile(backend=backend, dynamic=False)


def checkpoint_layers(model: nn.Module) -> None:
    """Layers keep only their input and run again in the backward pass: less memory, a third more time, the same gradients."""
    for layer in layers_of(model):
        layer.forward = partial(_again, layer.forward)  # type: ignore[method-assign]


def _again(forward: Callable[..., Tensor], *given: object) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*given)
    return checkpoint(forward, *given, use_reentrant=False)  # type: ignore[no-any-return]


def layers_of(model: nn.Module) -> list[Layer]:
    return [part for part in model.modules() if isinstance(part, Layer)]
