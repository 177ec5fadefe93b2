"""Calling an op past torch's dispatcher, which takes more time in Python than a fast kernel does on a GPU.

A custom op can be compiled, exported, counted and watched. Where nobody does any of that, the same body runs as a plain
autograd function instead: the same kernels, the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Body = Callable[..., Any]
_PLAIN = (Tensor, nn.Parameter)


def unwatched(args: tuple[Any, ...]) -> bool:
    """Whether a call with these arguments concerns nobody but autograd: no compiler or tracer, no dispatch mode, no
    function transform, no tensors of a subclass."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    for arg in args:
        if isinstance(arg, list):
            if not all(type(each) in _PLAIN for each in arg):
                return False
        elif isinstance(arg, Tensor) and type(arg) not in _PLAIN:
            return False
    return True


def direct(op: Body, body: Body) -> Body:
    """The op, or its body alone where that is all that would happen."""
    return lambda *args: (body if unwatched(args) else op)(*args)


def quick(op: Body, body: Body, keep: Body, differentiate: Body, listed: int | None = None) -> Body:
    """The op with its autograd, or the same as an autograd function. keep and differentiate are the op's own; listed: the
    place of an argument that is a list of tensors, which autograd functions do not look into."""

    class Quick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, count: int, *flat: Any) -> Any:
            args = flat if listed is None else (*flat[:listed], list(flat[listed : listed + count]), *flat[listed + count :])
            output = body(*args)
            ctx.count = count
            keep(ctx, args, output)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            found = differentiate(ctx, *grads)
            if listed is None:
                return None, *found
            return None, *found[:listed], *(found[listed] or [None] * ctx.count), *found[listed + 1 :]

    def call(*args: Any) -> Any:
        if not unwatched(args):
            return op(*args)
        if listed is None:
            return Quick.apply(0, *args)
        return Quick.apply(len(args[listed]), *args[:listed], *args[listed], *args[listed + 1 :])

    return call
