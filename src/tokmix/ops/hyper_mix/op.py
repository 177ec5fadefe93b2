"""HyperMixing with narrow heads as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp


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


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    x, (B, T, _), (H, e, _) = given.x, given.x.shape, given.v1.shape
    rows, S = e + (given.c1 is not None), B if given.first is None else given.first.shape[0] - 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if given.gain is None else torch.empty_like(y)
    mean, rstd = (x.new_empty(B * T if given.gain is not None else 0, dtype=torch.float32) for _ in range(2))
    return y, x.new_empty(H, rows, S, e, dtype=torch.float32), x.new_empty(H, rows, S, e), z, mean, rstd


def _empty_backward(d: Gradient, saved: Saved, given: Inputs) -> tuple[Tensor, ...]:
    x, (H, rows, _, e), k = given.x, saved.states.shape, given.v1.shape[2]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dvalues = x.new_empty(0) if given.values is None else torch.empty_like(dx)
    norm = dx.new_empty(0 if given.gain is None else 2, x.shape[2], dtype=torch.float32)
    inner = dx.new_empty(1 if given.u2 is None else 2, H, e + 1, e, dtype=torch.float32)
    return dx, dvalues, inner, dx.new_empty(H, rows, k), dx.new_empty(H, rows, k), norm


def _gradients(dy: Tensor, saved: Saved, given: Inputs) -> Gradients:
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


forward = KernelOp[tuple[Tensor, ...]]("tokmix::hyper_mix", "tokmix.ops.hyper_mix.launch:forward", [Inputs], 6, _empty)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::hyper_mix_backward", "tokmix.ops.hyper_mix.launch:backward", [Gradient, Saved, Inputs], 6, _empty_backward
)
forward.differentiate(_gradients, Inputs, Saved)
