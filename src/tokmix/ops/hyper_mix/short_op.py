"""HyperMixing of short sequences as a custom op, which takes the matrices that the hypernetworks generate.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp


class Inputs(NamedTuple):
    """The op's arguments, in order. w2 is None if both generated matrices are the same."""

    x: Tensor
    w1: Tensor
    w2: Tensor | None
    scale: Tensor | None
    readout: Tensor | None
    gain: Tensor | None
    bias: Tensor | None
    eps: float
    table: Tensor | None
    longest: int
    full: bool


class Saved(NamedTuple):
    """Saved for the backward pass: the norm's input and the moments of its rows, empty without a norm."""

    z: Tensor  # [B, T, D]
    mean: Tensor  # [B * T]
    rstd: Tensor  # [B * T]


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    x, (B, T, _) = given.x, given.x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if given.gain is None else torch.empty_like(y)
    mean, rstd = (x.new_empty(B * T if given.gain is not None else 0, dtype=torch.float32) for _ in range(2))
    return y, z, mean, rstd


def _empty_backward(d: Gradient, saved: Saved, given: Inputs) -> tuple[Tensor, ...]:
    dx, dw1 = (torch.empty(like.shape, dtype=like.dtype, device=like.device) for like in (given.x, given.w1))
    dw2 = dx.new_empty(0) if given.w2 is None else torch.empty_like(dw1)
    return dx, dw1, dw2, dx.new_empty(0 if given.gain is None else 2, dx.shape[2], dtype=torch.float32)


def _gradients(dy: Tensor, saved: Saved, given: Inputs) -> Gradients:
    dx, dw1, dw2, dnorm = backward.entry(dy, *saved, *given)(dy, *saved, *given)
    norm = (None, None) if given.gain is None else dnorm.to(given.gain.dtype).unbind()
    return dx, dw1, None if given.w2 is None else dw2, None, None, *norm, None, None, None, None


forward = KernelOp[tuple[Tensor, ...]]("tokmix::short_hyper_mix", "tokmix.ops.hyper_mix.short:forward", [Inputs], 4, _empty)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::short_hyper_mix_backward", "tokmix.ops.hyper_mix.short:backward", [Gradient, Saved, Inputs], 4, _empty_backward
)
forward.differentiate(_gradients, Inputs, Saved)
