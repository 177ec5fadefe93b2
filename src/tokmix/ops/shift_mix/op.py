"""Shift mixing with weights a channel or a head as custom ops, with and without a LayerNorm before and a residual around it.

Importing this needs torch alone; the kernels are loaded when an op first runs. The last arguments of every op say where a
token's partners are: shift (of all heads), table [H] (if heads have different shifts) and places [2, B, T] (where sequences end).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp, Nothing


def like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def _per_weight(channels: Tensor, a: Tensor, count: int) -> Gradients:
    """Gradients per channel [n, D] -> one for each weight, [H, e] or [H, 1], and None for an absent third one."""
    heads, width = a.shape
    grouped = channels.unflatten(1, (heads, -1))
    if width != grouped.shape[2]:
        grouped = grouped.sum(2, keepdim=True)
    return *grouped.to(a.dtype).unbind(), *[None] * (3 - count)


# ---------------------------------------------------------------- weighted: ab and vector
class Inputs(NamedTuple):
    """Arguments of `shift_mix`, in order. c is None if tokens have only earlier partners."""

    x: Tensor
    a: Tensor
    b: Tensor
    c: Tensor | None
    shift: int
    table: Tensor | None
    places: Tensor | None


def _empty(given: Inputs | NormInputs) -> Tensor:
    return like(given.x, torch.promote_types(given.x.dtype, given.a.dtype))


def _empty_backward(d: Gradient, given: Inputs) -> tuple[Tensor, Tensor]:
    return like(given.x), given.x.new_empty(2 if given.c is None else 3, given.x.shape[2], dtype=torch.float32)


def _gradients(dy: Tensor, saved: Nothing, given: Inputs) -> Gradients:
    dx, channels = backward.entry(dy, *given)(dy, *given)
    return dx, *_per_weight(channels, given.a, len(channels)), None, None, None


forward = KernelOp[Tensor]("tokmix::shift_mix", "tokmix.ops.shift_mix.kernels.weighted:forward", [Inputs], 1, _empty)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::shift_mix_backward", "tokmix.ops.shift_mix.kernels.weighted:backward", [Gradient, Inputs], 2, _empty_backward
)
forward.differentiate(_gradients, Inputs, Nothing)


# ---------------------------------------------------------------- LayerNorm, weighted, residual
class NormInputs(NamedTuple):
    """Arguments of `norm_shift_mix`, in order."""

    x: Tensor
    a: Tensor
    b: Tensor
    c: Tensor | None
    gain: Tensor
    bias: Tensor
    eps: float
    shift: int
    table: Tensor | None
    places: Tensor | None


def _norm_empty_backward(d: Gradient, given: NormInputs) -> tuple[Tensor, Tensor]:
    return like(given.x), given.x.new_empty(4 if given.c is None else 5, given.x.shape[2], dtype=torch.float32)


def _norm_gradients(dy: Tensor, saved: Nothing, given: NormInputs) -> Gradients:
    dx, channels = norm_backward.entry(dy, *given)(dy, *given)
    if given.a.shape[1] > 1 and given.gain.dtype == given.a.dtype:
        channels = channels.to(given.gain.dtype)  # one cast for all
    dgain, dbias = channels[0].to(given.gain.dtype), channels[1].to(given.bias.dtype)
    return dx, *_per_weight(channels[2:], given.a, len(channels) - 2), dgain, dbias, None, None, None, None


norm_forward = KernelOp[Tensor]("tokmix::norm_shift_mix", "tokmix.ops.shift_mix.kernels.norm_weighted:forward", [NormInputs], 1, _empty)
norm_backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::norm_shift_mix_backward", "tokmix.ops.shift_mix.kernels.norm_weighted:backward",
    [Gradient, NormInputs], 2, _norm_empty_backward,
)  # fmt: skip
norm_forward.differentiate(_norm_gradients, NormInputs, Nothing)
