"""The short convolution as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp, Nothing


class Inputs(NamedTuple):
    x: Tensor
    weight: Tensor


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _empty_backward(d: Gradient, given: Inputs) -> tuple[Tensor, Tensor]:
    D, K = given.weight.shape
    return _like(given.x), given.x.new_empty(K, D, dtype=torch.float32).mT


def _gradients(dy: Tensor, saved: Nothing, given: Inputs) -> Gradients:
    dx, dweight = backward.entry(dy, *given)(dy, *given)
    return dx, dweight.to(given.weight.dtype)


forward = KernelOp[Tensor](
    "tokmix::short_conv", "tokmix.ops.short_conv.kernels.depthwise:forward", [Inputs], 1, lambda given: _like(given.x)
)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::short_conv_backward", "tokmix.ops.short_conv.kernels.depthwise:backward", [Gradient, Inputs], 2, _empty_backward
)
forward.differentiate(_gradients, Inputs, Nothing)
