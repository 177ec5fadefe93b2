"""Shift mixing with weights a channel or a head as custom ops, with and without a LayerNorm before and a residual around it.

Importing this needs torch alone; the kernels are loaded when an op first runs. The last arguments of every op say where a
token's partners are: shift (of all heads), table [H] (if heads have different shifts) and places [2, B, T] (where sequences end).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, on_its_device, restore, save


def like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _per_weight(channels: Tensor, a: Tensor, count: int) -> Gradients:
    """Gradients per channel [n, D] -> one for each weight, [H, e] or [H, 1], and None for an absent third one."""
    heads, width = a.shape
    grouped = channels.unflatten(1, (heads, -1))
    if width != grouped.shape[2]:
        grouped = grouped.sum(2, keepdim=True)
    return *grouped.to(a.dtype).unbind(), *[None] * (3 - count)


class Nothing(NamedTuple):
    """The forward pass saves no intermediate tensors."""


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


@torch.library.custom_op("tokmix::shift_mix", mutates_args=())
@on_its_device
def shift_mix(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    from tokmix.ops.shift_mix.kernels import weighted

    return weighted.forward(x, a, b, c, shift, table, places)


@shift_mix.register_fake
def _(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    return like(x, torch.promote_types(x.dtype, a.dtype))


@torch.library.custom_op("tokmix::shift_mix_backward", mutates_args=())
@on_its_device
def shift_mix_backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import weighted

    return weighted.backward(dy, x, a, b, c, shift, table, places)


@shift_mix_backward.register_fake
def _(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    return like(x, x.dtype), x.new_empty(2 if c is None else 3, x.shape[2], dtype=torch.float32)


def _keep(ctx: Context, inputs: tuple[object, ...], output: Tensor) -> None:
    save(ctx, inputs)


def _gradients(ctx: Context, dy: Tensor) -> Gradients:
    given, _ = restore(ctx, Inputs, Nothing)
    dx, channels = backward.entry(dy, *given)(dy, *given)
    return dx, *_per_weight(channels, given.a, len(channels)), None, None, None


forward = KernelOp[Tensor](shift_mix, "tokmix.ops.shift_mix.kernels.weighted:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](shift_mix_backward, "tokmix.ops.shift_mix.kernels.weighted:backward")


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


@torch.library.custom_op("tokmix::norm_shift_mix", mutates_args=())
@on_its_device
def norm_shift_mix(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> Tensor:  # fmt: skip
    from tokmix.ops.shift_mix.kernels import norm_weighted

    return norm_weighted.forward(x, a, b, c, gain, bias, eps, shift, table, places)


@norm_shift_mix.register_fake
def _(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> Tensor:  # fmt: skip
    return like(x, torch.promote_types(x.dtype, a.dtype))


@torch.library.custom_op("tokmix::norm_shift_mix_backward", mutates_args=())
@on_its_device
def norm_shift_mix_backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.shift_mix.kernels import norm_weighted

    return norm_weighted.backward(dy, x, a, b, c, gain, bias, eps, shift, table, places)


@norm_shift_mix_backward.register_fake
def _(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return like(x, x.dtype), x.new_empty(4 if c is None else 5, x.shape[2], dtype=torch.float32)


def _norm_gradients(ctx: Context, dy: Tensor) -> Gradients:
    given, _ = restore(ctx, NormInputs, Nothing)
    dx, channels = norm_backward.entry(dy, *given)(dy, *given)
    if given.a.shape[1] > 1 and given.gain.dtype == given.a.dtype:
        channels = channels.to(given.gain.dtype)  # one cast for all
    dgain, dbias = channels[0].to(given.gain.dtype), channels[1].to(given.bias.dtype)
    return dx, *_per_weight(channels[2:], given.a, len(channels) - 2), dgain, dbias, None, None, None, None


norm_forward = KernelOp[Tensor](norm_shift_mix, "tokmix.ops.shift_mix.kernels.norm_weighted:forward", _keep, _norm_gradients)
norm_backward = KernelOp[tuple[Tensor, ...]](norm_shift_mix_backward, "tokmix.ops.shift_mix.kernels.norm_weighted:backward")
