"""HyperMixing with wide heads as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp
from tokmix.ops.hyper_mix.reassociated import loses_digits


class Inputs(NamedTuple):
    """The op's arguments, in order. A net is U, b, V, c; the second one is empty if both are the same."""

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


class Saved(NamedTuple):
    """Saved for the backward pass; n nets. Tensors of a bias or a norm are empty without one."""

    p: Tensor  # [H, B * T, n i], x U
    h: Tensor  # [H, B * T, n i], GELU(p + b)
    states: Tensor  # [H, B * e, i], or 2 i in two factors
    m: Tensor  # [B, D], the sum of the tokens
    hidden: Tensor  # [H, B * e, k]
    read: Tensor  # [H, B * e, i]
    z: Tensor  # [B, T, D], the norm's input
    r: Tensor  # [B, D], what the second net's bias adds to it
    mean: Tensor  # [B * T]
    rstd: Tensor  # [B * T]


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    x, (B, T, D), (H, e, i) = given.x, given.x.shape, given.u1.shape
    k, width = given.v1.shape[2], i if given.u2 is None else 2 * i
    wide = lambda *shape: x.new_empty(*shape, dtype=torch.float32)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tokens = [x.new_empty(H, B * T, width) for _ in range(2)]
    exact = loses_digits(T, e, x.dtype)
    states, read = (x.new_empty(H, B * e, width) for width in (2 * i if exact else i, i))
    hidden = x.new_empty(H, B * e, k, dtype=torch.float32 if exact else x.dtype)
    m = wide(0) if given.c1 is None else wide(B, D)
    if given.gain is None:
        return y, *tokens, states, m, hidden, read, x.new_empty(0), wide(0), wide(0), wide(0)
    r = wide(0) if given.c1 is None else wide(B, D)
    return y, *tokens, states, m, hidden, read, torch.empty_like(y), r, wide(B * T), wide(B * T)


def _empty_backward(d: Gradient, saved: Saved, given: Inputs) -> tuple[Tensor, ...]:
    x, (H, _, i) = given.x, saved.read.shape
    D, width, k = x.shape[2], saved.p.shape[2], saved.hidden.shape[2]
    wide = lambda *shape: x.new_empty(*shape, dtype=torch.float32)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dvalues = x.new_empty(0) if given.values is None else torch.empty_like(dx)
    outer = [x.new_empty(H, i, k) for _ in range(2)]
    return dx, dvalues, x.new_empty(H, D // H, width), wide(H, width), *outer, wide(2, H, k), wide(0 if given.gain is None else 2, D)


def _gradients(dy: Tensor, saved: Saved, given: Inputs) -> Gradients:
    dx, dvalues, du, db, dv1, dv2, dc, dnorm = backward.entry(dy, *saved, *given)(dy, *saved, *given)
    i = given.u1.shape[2]
    like = lambda grad, weight: None if weight is None else grad.to(weight.dtype)
    if given.u2 is None:
        nets = [like(du, given.u1), like(db, given.b1), like(dv1 + dv2, given.v1)]
        nets += [None if given.c1 is None else like(dc[0] + dc[1], given.c1), None, None, None, None]
    else:
        nets = [like(du[..., :i], given.u1), like(db[..., :i], given.b1), like(dv1, given.v1), like(dc[0], given.c1)]
        nets += [like(du[..., i:], given.u2), like(db[..., i:], given.b2), like(dv2, given.v2), like(dc[1], given.c2)]
    norm = (None, None) if given.gain is None else dnorm.to(given.gain.dtype).unbind()
    return dx, None if given.values is None else dvalues, *nets, None, None, *norm, None


forward = KernelOp[tuple[Tensor, ...]]("tokmix::wide_hyper_mix", "tokmix.ops.hyper_mix.wide:forward", [Inputs], 11, _empty)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::wide_hyper_mix_backward", "tokmix.ops.hyper_mix.wide:backward", [Gradient, Saved, Inputs], 8, _empty_backward
)
forward.differentiate(_gradients, Inputs, Saved)
