"""Calling an op past torch's dispatcher, which takes more time in Python than a fast kernel does on a GPU.

A custom op can be compiled, exported, counted and watched. Where nobody does any of that, the same body runs as a plain
autograd function instead: the same kernels, the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokmix.ops.dispatch import transformed

Body = Callable[..., Any]
_PLAIN = (Tensor, nn.Parameter)


def unwatched(args: tuple[Any, ...]) -> bool:
    """Whether a call with these arguments concerns nobody but autograd: no compiler or tracer, no dispatch mode, no
    function transform, no tensors of a subclass."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or transformed():
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


def on_its_device(body: Body) -> Body:
    """The body, on the GPU of its first argument: torch's own ops go there by themselves, Triton launches on the current one."""

    @functools.wraps(body)
    def run(*args: Any) -> Any:
        device = args[0].device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return body(*args)
        with torch.cuda.device(device):
            return body(*args)

    return run


def direct(op: Body, body: Body) -> Body:
    """The op, or its body alone where that is all that would happen. Not where gradients are kept track of, as they are in a backward
    pass whose own gradients are asked for: our backward ops have none, and the op says so."""
    return lambda *args: (op if torch.is_grad_enabled() or not unwatched(args) else body)(*args)


def where_asked(differentiate: Body) -> Body:
    """For ops that have no zeros made where a result has no gradient: theirs are none either where what follows asks nothing of y."""

    @functools.wraps(differentiate)
    def run(ctx: Any, dy: Tensor | None, *unused: Any) -> Any:
        return (None,) * len(ctx.needs_input_grad) if dy is None else differentiate(ctx, dy, *unused)

    return run


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
