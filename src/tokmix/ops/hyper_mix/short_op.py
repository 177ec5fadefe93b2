"""HyperMixing of short sequences as a custom op, which takes the matrices that the hypernetworks generate.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, no_gradients, on_its_device, restore, save

Four = tuple[Tensor, Tensor, Tensor, Tensor]


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


@torch.library.custom_op("tokmix::short_hyper_mix", mutates_args=())
@on_its_device
def short_hyper_mix(
    x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, longest: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.hyper_mix import short

    return short.forward(x, w1, w2, scale, readout, gain, bias, eps, table, longest, full)


@short_hyper_mix.register_fake
def _(
    x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, longest: int, full: bool,
) -> Four:  # fmt: skip
    B, T, _ = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if gain is None else torch.empty_like(y)
    mean, rstd = (x.new_empty(B * T if gain is not None else 0, dtype=torch.float32) for _ in range(2))
    return y, z, mean, rstd


@torch.library.custom_op("tokmix::short_hyper_mix_backward", mutates_args=())
@on_its_device
def short_hyper_mix_backward(
    dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None,
    readout: Tensor | None, gain: Tensor | None, bias: Tensor | None, eps: float, table: Tensor | None, longest: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.hyper_mix import short

    return short.backward(dy, z, mean, rstd, x, w1, w2, scale, readout, gain, bias, eps, table, longest, full)


@short_hyper_mix_backward.register_fake
def _(
    dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None,
    readout: Tensor | None, gain: Tensor | None, bias: Tensor | None, eps: float, table: Tensor | None, longest: int, full: bool,
) -> Four:  # fmt: skip
    dx, dw1 = (torch.empty(like.shape, dtype=like.dtype, device=like.device) for like in (x, w1))
    dw2 = x.new_empty(0) if w2 is None else torch.empty_like(dw1)
    return dx, dw1, dw2, dx.new_empty(0 if gain is None else 2, x.shape[2], dtype=torch.float32)


def _keep(ctx: Context, inputs: tuple[object, ...], output: Four) -> None:
    save(ctx, inputs, output[1:])


def _gradients(ctx: Context, dy: Tensor | None, *unused: None) -> Gradients:
    if dy is None:
        return no_gradients(ctx)
    given, saved = restore(ctx, Inputs, Saved)
    dx, dw1, dw2, dnorm = backward.entry(dy, *saved, *given)(dy, *saved, *given)
    norm = (None, None) if given.gain is None else dnorm.to(given.gain.dtype).unbind()
    return dx, dw1, None if given.w2 is None else dw2, None, None, *norm, None, None, None, None


forward = KernelOp[tuple[Tensor, ...]](short_hyper_mix, "tokmix.ops.hyper_mix.short:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](short_hyper_mix_backward, "tokmix.ops.hyper_mix.short:backward")
