"""Weights that are loaded only while their module runs, as accelerate's CPU and disk offload do.

accelerate replaces a module's `forward` by one that loads the module's own weights for the call; at other times they are on the meta
device. Code that calls another method, or reads a weight from outside the module, uses `with_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import nn

R = TypeVar("R")


class _Hook(Protocol):
    def pre_forward(self, module: nn.Module) -> object: ...
    def post_forward(self, module: nn.Module, output: object) -> object: ...


def is_watched(module: nn.Module) -> bool:
    """Whether the module has hooks that run when it is called: forward, backward or accelerate's."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "_hf_hook" in module.__dict__


def with_weights(module: nn.Module, method: Callable[[], R]) -> R:
    """The result of method(), with the module's own weights loaded while it runs."""
    hook: _Hook | None = module.__dict__.get("_hf_hook")
    if hook is None:
        return method()
    hook.pre_forward(module)
    try:
        return method()
    finally:
        hook.post_forward(module, None)
