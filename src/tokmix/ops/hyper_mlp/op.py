"""HyperMLP's kernels as custom ops, which torch.compile, autograd and operation counters treat as single operations.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradients, KernelOp


class Inputs(NamedTuple):
    """The op's arguments, in order: q [B, Hq, T, e], k and v [B, H, T, f], banks cut to T."""

    q: Tensor
    k: Tensor
    v: Tensor
    down1: Tensor | None
    up1: Tensor | None
    diagonal1: Tensor | None
    control1: Tensor | None
    down2: Tensor | None
    up2: Tensor | None
    diagonal2: Tensor | None
    control2: Tensor | None
    lag: bool


class Outputs(NamedTuple):
    """The result and, in float32, what the backward pass needs; empty without a bank."""

    o: Tensor
    u: Tensor
    y: Tensor
    shrink: Tensor  # 1 / ‖h‖


class Gradient(NamedTuple):
    do: Tensor


def _by_token(like: Tensor) -> Tensor:
    B, H, T, n = like.shape
    return like.new_empty(B, T, H, n).transpose(1, 2)


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    B, H, T, _ = given.v.shape
    new = lambda *shape: given.v.new_empty(shape, dtype=torch.float32)
    u, y = (new(0) if control is None else new(*control.shape) for control in (given.control1, given.control2))
    return _by_token(given.v), u, y, new(B, H, T)


def _empty_backward(d: Gradient, saved: Outputs, given: Inputs) -> tuple[Tensor, ...]:
    absent = lambda: given.v.new_empty(0, dtype=torch.float32)
    banks = [absent() if x is None else given.v.new_empty(x.shape, dtype=x.dtype) for x in given[3:-1]]
    return _by_token(given.q), _by_token(given.k), _by_token(given.v), *banks


def _gradients(do: Tensor, saved: Outputs, given: Inputs) -> Gradients:
    found = backward.entry(do, *saved, *given)(do, *saved, *given)
    return *(None if x is None else dx for x, dx in zip(given[:-1], found, strict=True)), None


forward = KernelOp[tuple[Tensor, ...]]("tokmix::hyper_mlp", "tokmix.ops.hyper_mlp.launch:forward", [Inputs], 4, _empty)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::hyper_mlp_backward", "tokmix.ops.hyper_mlp.launch_backward:backward", [Gradient, Outputs, Inputs], 11, _empty_backward
)
forward.differentiate(_gradients, Inputs, Outputs)
