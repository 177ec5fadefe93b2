"""HyperMixing with narrow heads as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, no_gradients, on_its_device, restore, save

Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Inputs(NamedTuple):
    """The op's arguments, in order. A net is U, b, V, c; the second one is empty if both are the same. `table`, `first`, `size` and `full`
    are those of `Chunks`."""

    x: Tensor
    values: Tensor | None
    u1: Tensor
    b1: Tensor | None
    v1: Tensor
    c1: Tensor | None
    u2: Tensor | None
    b2: Tensor | None
    v2: Tensor | None
    c2: Tensor | None
    scale: Tensor | None
    readout: Tensor | None
    gain: Tensor | None
    bias: Tensor | None
    eps: float
    table: Tensor | None
    first: Tensor | None
    size: int
    full: bool


class Saved(NamedTuple):
    """For the backward pass."""

    states: Tensor  # [H, rows, S, e]: [Hᵀ v; 1ᵀ v] of each sequence
    read: Tensor  # [H, rows, S, e]
    z: Tensor  # [B, T, D], the norm's input; it and its moments are empty without one
    mean: Tensor  # [B * T]
    rstd: Tensor  # [B * T]


@torch.library.custom_op("tokmix::hyper_mix", mutates_args=())
@on_its_device
def hyper_mix(
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.hyper_mix import launch

    return launch.forward(x, values, u1, b1, v1, c1, u2, b2, v2, c2, scale, readout, gain, bias, eps, table, first, size, full)


@hyper_mix.register_fake
def _(
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> Six:  # fmt: skip
    B, T, _ = x.shape
    H, e, _ = v1.shape
    rows, S = e + (c1 is not None), B if first is None else first.shape[0] - 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if gain is None else torch.empty_like(y)
    mean, rstd = (x.new_empty(B * T if gain is not None else 0, dtype=torch.float32) for _ in range(2))
    return y, x.new_empty(H, rows, S, e, dtype=torch.float32), x.new_empty(H, rows, S, e), z, mean, rstd


@torch.library.custom_op("tokmix::hyper_mix_backward", mutates_args=())
@on_its_device
def hyper_mix_backward(
    dy: Tensor, states: Tensor, read: Tensor, z: Tensor, mean: Tensor, rstd: Tensor,
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.hyper_mix import launch

    given = (x, values, u1, b1, v1, c1, u2, b2, v2, c2, scale, readout, gain, bias, eps, table, first, size, full)
    return launch.backward(dy, states, read, z, mean, rstd, *given)


@hyper_mix_backward.register_fake
def _(
    dy: Tensor, states: Tensor, read: Tensor, z: Tensor, mean: Tensor, rstd: Tensor,
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> Six:  # fmt: skip
    H, rows, _, e = states.shape
    k, D = v1.shape[2], x.shape[2]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dvalues = x.new_empty(0) if values is None else torch.empty_like(dx)
    norm = dx.new_empty(0 if gain is None else 2, D, dtype=torch.float32)
    inner = dx.new_empty(1 if u2 is None else 2, H, e + 1, e, dtype=torch.float32)
    return dx, dvalues, inner, dx.new_empty(H, rows, k), dx.new_empty(H, rows, k), norm


def _keep(ctx: Context, inputs: tuple[object, ...], output: Six) -> None:
    save(ctx, inputs, output[1:])


def _gradients(ctx: Context, dy: Tensor | None, *unused: None) -> Gradients:
    if dy is None:
        return no_gradients(ctx)
    given, saved = restore(ctx, Inputs, Saved)
    dx, dvalues, du, dv1, dv2, dnorm = backward.entry(dy, *saved, *given)(dy, *saved, *given)
    e, du = given.u1.shape[1], du.to(given.u1.dtype)  # one cast for all
    if given.u2 is None or given.v2 is None:
        nets = [*_parted(du[0], e, given.u1, given.b1), *_parted(dv1 + dv2, e, given.v1, given.c1), None, None, None, None]
    else:
        nets = [*_parted(du[0], e, given.u1, given.b1), *_parted(dv1, e, given.v1, given.c1)]
        nets += [*_parted(du[1], e, given.u2, given.b2), *_parted(dv2, e, given.v2, given.c2)]
    norm = (None, None) if given.gain is None else dnorm.to(given.gain.dtype).unbind()
    return dx, None if given.values is None else dvalues, *nets, None, None, *norm, None, None, None, None, None


def _parted(grad: Tensor, e: int, matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """[H, e + 1, n] -> the gradients of a matrix and its bias, if any."""
    return grad[:, :e].to(matrix.dtype), None if bias is None else grad[:, e].to(bias.dtype)


forward = KernelOp[tuple[Tensor, ...]](hyper_mix, "tokmix.ops.hyper_mix.launch:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](hyper_mix_backward, "tokmix.ops.hyper_mix.launch:backward")
