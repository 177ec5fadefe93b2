"""Turning pairs of channels as a custom op. Importing this needs torch alone; the kernel is loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp, Nothing


class Inputs(NamedTuple):
    x: Tensor
    cos: Tensor
    sin: Tensor


class Angles(NamedTuple):
    cos: Tensor
    sin: Tensor


def _like(x: Tensor) -> Tensor:
    """An empty tensor with tokens as the outer dimension in memory, like projections."""
    B, H, L, E = x.shape
    return torch.empty(B, L, H, E, dtype=x.dtype, device=x.device).transpose(1, 2)


def _gradients(dy: Tensor, saved: Nothing, given: Inputs) -> Gradients:
    dy = dy if dy.stride(3) == 1 else dy.contiguous()
    return backward.entry(dy, *given[1:])(dy, *given[1:]), None, None


forward = KernelOp[Tensor]("tokmix::rotary", "tokmix.ops.rotary.kernels.pairs:turned", [Inputs], 1, lambda given: _like(given.x))
backward = KernelOp[Tensor](
    "tokmix::rotary_backward", "tokmix.ops.rotary.kernels.pairs:turned_back", [Gradient, Angles], 1, lambda d, angles: _like(d.dy)
)
forward.differentiate(_gradients, Inputs, Nothing, unread=["x"])
