"""Shift mixing on x [B, T, D] in its own layout, padded or packed: a kernel if there is one, else plain torch.

shifts   of each of the H heads
places   where sequences end, see `tokmix.core.token_offsets`; None = every row is one whole sequence
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.dispatch import autocast_dtype, use_triton
from tokmix.ops.fast_call import unwatched
from tokmix.ops.shift_mix import inplace, matrix_op, op, reference, step_op

WIDEST = 8192  # channels one program can hold


def shift_mix(x: Tensor, weights: list[Tensor], shifts: tuple[int, ...], *, places: Tensor | None = None) -> Tensor:
    """a ⊙ x_t + b ⊙ x_{t-s} (+ c ⊙ x_{t+s}), zero at padding. Two or three weights, [H, e] or [H, 1] each."""
    if use_triton(x, _result(x, weights), fits=x.numel() > 0):
        return op.forward.entry(x, *weights)(x, *_three(weights), shifts[0], _table(x, shifts), places)
    if inplace.fits(x, weights, shifts, places):
        return inplace.shift_mix(x.unflatten(-1, (len(shifts), -1)), weights, shifts[0]).flatten(2)
    heads = _real(x, places).unflatten(-1, (len(shifts), -1))  # [B, T, H, e]
    y = reference.weighted(heads, _others(heads, shifts, places, len(weights) == 3), weights).flatten(2)
    return _real(y, places)  # it is zero already, but a NaN that flows back there would reach the weights' gradients


def norm_shift_mix(
    x: Tensor,
    weights: list[Tensor],
    gain: Tensor,
    bias: Tensor,
    eps: float,
    shifts: tuple[int, ...],
    *,
    places: Tensor | None = None,
) -> Tensor:
    """x + shift_mix(LayerNorm(x)); at padding x itself."""
    if _fits_norm(x, weights):
        given = (x, *_three(weights), gain, bias)
        return op.norm_forward.entry(*given)(*given, eps, shifts[0], _table(x, shifts), places)
    normed = F.layer_norm(x, x.shape[-1:], gain, bias, eps)
    return x + shift_mix(normed, weights, shifts, places=places)


def has_norm_kernel(x: Tensor, weights: list[Tensor], gain: Tensor) -> bool:
    """Whether `norm_shift_mix` of x runs a kernel with the result and dtype of a LayerNorm and `shift_mix`."""
    same = x.dtype == weights[0].dtype == gain.dtype
    # Under autocast a LayerNorm's result is always float32.
    return same and (autocast_dtype(x) is None or x.dtype == torch.float32) and _fits_norm(x, weights)


def _fits_norm(x: Tensor, weights: list[Tensor]) -> bool:
    return use_triton(x, _result(x, weights), fits=x.numel() > 0 and x.shape[2] <= WIDEST)


def matrix_shift_mix(x: Tensor, weights: list[Tensor], shifts: tuple[int, ...], *, places: Tensor | None = None) -> Tensor:
    """A x_t + B x_{t-s} (+ C x_{t+s}), zero at padding. Two or three weights, [H, e, e] each."""
    x = _real(x, places)  # a NaN at padding would otherwise reach the weights' gradients
    dtype = autocast_dtype(x) or _result(x, weights)
    if use_triton(x, dtype, fits=x.numel() > 0):
        given = (x.to(dtype), *_three([weight.to(dtype) for weight in weights]))
        return matrix_op.forward.entry(*given)(*given, shifts[0], _table(x, shifts), places)
    heads = x.unflatten(-1, (len(shifts), -1))
    return _real(reference.matrix(heads, _others(heads, shifts, places, len(weights) == 3), weights).flatten(2), places)


def gate_shift_mix(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shifts: tuple[int, ...],
    *,
    both_ways: bool = False,
    places: Tensor | None = None,
) -> Tensor:
    """z + g ⊙ (x - z) with g = sigmoid(W x + c), z = x_{t-s} or, both ways, its mean with x_{t+s}; zero at padding.
    weight [H, e, e], bias [H, e]."""
    x = _real(x, places)  # a NaN at padding would otherwise reach dW
    dtype = autocast_dtype(x) or _result(x, [weight])
    if use_triton(x, dtype, fits=x.numel() > 0):
        given = (x.to(dtype), weight.to(dtype), bias)
        return matrix_op.gate_forward.entry(*given)(*given, both_ways, shifts[0], _table(x, shifts), places)[0]
    heads = x.unflatten(-1, (len(shifts), -1))
    y = reference.gated(heads, _others(heads, shifts, places, both_ways), weight, bias, both=False).flatten(2)
    return _real(y, places)


def has_step_kernel(x: Tensor, ring: Tensor) -> bool:
    """Whether `step` of x [B, 1, e] runs a kernel, which keeps no gradients."""
    fits = x.numel() > 0 and ring.shape[2] <= WIDEST and not torch.is_grad_enabled()
    return use_triton(x, torch.promote_types(x.dtype, ring.dtype), fits=fits)


def step(
    x: Tensor,
    ring: Tensor,
    position: Tensor,
    *,
    new: Tensor | None = None,
    weights: list[Tensor] | None = None,
    gate: tuple[Tensor, Tensor] | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None,
    advance: bool = True,
) -> Tensor:
    """Decoding, one head and one token a row: x [B, 1, e], ring [B, s, e] with the token at position p in slot p mod s ->
    the mixed token, [B, 1, e]. Changes ring and, where `advance`, position [B] in place.

    weights: as `shift_mix`, without heads; gate: W x and its bias; neither: the partner itself. norm (gain, bias, eps):
    x + step(LayerNorm(x)) instead. new [B]: which rows have a new token; the others keep what they have, and give zero."""
    p, gate_bias = (None, None) if gate is None else gate
    gain, bias, eps = (None, None, 0.0) if norm is None else norm
    one = lambda tensor: None if tensor is None else tensor.flatten().contiguous()
    if has_step_kernel(x, ring):
        given = (None if p is None else p[:, 0].contiguous(), one(gate_bias), one(gain), one(bias), eps, advance)
        tensors = (x[:, 0], ring, position, new, weights or [])
        return step_op.forward.entry(*tensors, p)(*tensors, *given)[:, None]
    normed = x if norm is None else F.layer_norm(x, x.shape[-1:], gain, bias, eps)
    other = reference.exchange_(normed, ring, position, new, advance)
    if weights:
        y = weights[0] * normed + weights[1] * other
    elif p is not None and gate_bias is not None:
        y = other + torch.sigmoid(p + gate_bias) * (normed - other)
    else:
        y = other
    y = y if new is None else torch.where(new[:, None, None], y, 0)
    return y if norm is None else x + y


def _result(x: Tensor, weights: list[Tensor]) -> torch.dtype:
    return torch.promote_types(x.dtype, weights[0].dtype)


def _three(weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
    a, b, *rest = weights
    return a, b, rest[0] if rest else None


def _table(x: Tensor, shifts: tuple[int, ...]) -> Tensor | None:
    """The shifts as int32 [H] on x's device; None if all are the same."""
    if len(set(shifts)) == 1:
        return None
    lasting = unwatched((x,)) and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    return (_cached_table if lasting else _new_table)(shifts, x.device)


def _new_table(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    # Written by the device itself: a copy from the host would make it wait, and cannot be part of a CUDA graph.
    return torch.cat([torch.full((1,), shift, dtype=torch.int32, device=device) for shift in shifts])


@functools.lru_cache(maxsize=256)
def _cached_table(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a later training step may save it for its backward pass
        return _new_table(shifts, device)


def _real(x: Tensor, places: Tensor | None) -> Tensor:
    """x with zeros at padding."""
    return x if places is None else torch.where(places[0, :, :, None] >= 0, x, 0)


def _others(x: Tensor, shifts: tuple[int, ...], places: Tensor | None, both_ways: bool) -> list[Tensor]:
    """The partners of x [B, T, H, e]; zero if they are outside of the token's own sequence."""
    far = shifts[0] if len(set(shifts)) == 1 else torch.tensor(shifts, device=x.device)[:, None]
    others = []
    for way, sign in enumerate((1, -1) if both_ways else (1,)):
        other = reference.partners(x, shifts, sign)
        others.append(other if places is None else torch.where(places[way, :, :, None, None] >= far, other, 0))
    return others
