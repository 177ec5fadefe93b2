"""The decoding step of shift mixing as a custom op that changes its ring and position. It has no gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import KernelOp
from tokmix.ops.shift_mix.op import like


class Inputs(NamedTuple):
    x: Tensor
    ring: Tensor
    position: Tensor
    new: Tensor | None
    weights: list[Tensor]
    gate: Tensor | None
    gate_bias: Tensor | None
    gain: Tensor | None
    bias: Tensor | None
    eps: float
    advance: bool


def result_dtype(x: Tensor, ring: Tensor, weights: list[Tensor], gate: Tensor | None) -> torch.dtype:
    """The dtype that torch would promote these tensors to."""
    dtype = torch.promote_types(x.dtype, ring.dtype)
    for more in (*weights, *([] if gate is None else [gate])):
        dtype = torch.promote_types(dtype, more.dtype)
    return dtype


def _empty(given: Inputs) -> Tensor:
    return like(given.x, result_dtype(given.x, given.ring, given.weights, given.gate))


forward = KernelOp[Tensor]("tokmix::shift_step", "tokmix.ops.shift_mix.kernels.step:run", [Inputs], 1, _empty, ["ring", "position"])
