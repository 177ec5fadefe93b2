"""Shift mixing on x [B, T, D] as it stands, padded or packed: a kernel where there is one, plain torch elsewhere.

shifts   of each of the H heads
table    the same as int32 [H] on x's device; made on the fly where heads differ and none is given, which stalls
places   where sequences end, see `tokmix.places`; None = every row is one whole sequence
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.dispatch import autocast_dtype, use_triton
from tokmix.ops.shift_mix import library, reference

WIDEST_NORM = 8192  # channels one program can hold


def shift_mix(
    x: Tensor, weights: list[Tensor], shifts: tuple[int, ...], *, table: Tensor | None = None, places: Tensor | None = None
) -> Tensor:
    """a ⊙ x_t + b ⊙ x_{t-s} (+ c ⊙ x_{t+s}), zero at padding. Two or three weights, [H, e] or [H, 1] each."""
    if use_triton(x, _result(x, weights), fits=x.numel() > 0):
        return library.shift_mix(x, weights, shifts[0], _table(x, shifts, table), places)
    heads = _real(x, places).unflatten(-1, (len(shifts), -1))  # [B, T, H, e]
    return reference.weighted(heads, _others(heads, shifts, places, len(weights) == 3), weights).flatten(2)


def norm_shift_mix(
    x: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    eps: float,
    shifts: tuple[int, ...],
    *,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """x + shift_mix(LayerNorm(x)); at padding x itself."""
    if use_triton(x, _result(x, weights), fits=x.numel() > 0 and x.shape[2] <= WIDEST_NORM):
        return library.norm_shift_mix(x, weights, gain, bias, eps, shifts[0], _table(x, shifts, table), places)
    normed = F.layer_norm(x, x.shape[-1:], gain, bias, eps)
    return x + shift_mix(normed, weights, shifts, table=table, places=places)


def gate_shift_mix(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shifts: tuple[int, ...],
    *,
    both_ways: bool = False,
    table: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """z + g ⊙ (x - z) with g = sigmoid(W x + c), z = x_{t-s} or, both ways, its mean with x_{t+s}; zero at padding.
    weight [H, e, e], bias [H, e]."""
    x = _real(x, places)  # a NaN at padding would otherwise reach dW
    dtype = autocast_dtype(x) or _result(x, [weight])
    if use_triton(x, dtype, fits=x.numel() > 0):
        return library.gate_shift_mix(x.to(dtype), weight.to(dtype), bias, both_ways, shifts[0], _table(x, shifts, table), places)[0]
    heads = x.unflatten(-1, (len(shifts), -1))
    y = reference.gated(heads, _others(heads, shifts, places, both_ways), weight, bias, both=False).flatten(2)
    return _real(y, places)


def _result(x: Tensor, weights: list[Tensor]) -> torch.dtype:
    return torch.promote_types(x.dtype, weights[0].dtype)


def _table(x: Tensor, shifts: tuple[int, ...], table: Tensor | None) -> Tensor | None:
    if len(set(shifts)) == 1:
        return None
    return torch.tensor(shifts, dtype=torch.int32, device=x.device) if table is None else table


def _real(x: Tensor, places: Tensor | None) -> Tensor:
    """x with zeros at padding, whatever stood there."""
    return x if places is None else torch.where(places[0, :, :, None] >= 0, x, 0)


def _others(x: Tensor, shifts: tuple[int, ...], places: Tensor | None, both_ways: bool) -> list[Tensor]:
    """The partners of x [B, T, H, e], zero where they stand outside of the token's own sequence."""
    far = shifts[0] if len(set(shifts)) == 1 else torch.tensor(shifts, device=x.device)[:, None]
    others = []
    for way, sign in enumerate((1, -1) if both_ways else (1,)):
        other = reference.partners(x, shifts, sign)
        others.append(other if places is None else torch.where(places[way, :, :, None, None] >= far, other, 0))
    return others
