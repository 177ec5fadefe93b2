"""The weighted shift mix on a CPU in half the passes over memory: shifts are views, and sums are added in place.

The same formulas as in `triton`, written in torch; its gradients can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.dispatch import forced
from tokmix.ops.quick import unwatched


def fits(x: Tensor, weights: list[Tensor], shifts: tuple[int, ...], places: Tensor | None) -> bool:
    """Whole rows on a CPU, all heads with one shift."""
    return (
        x.device.type == "cpu"
        and places is None
        and len(set(shifts)) == 1
        and all(weight.dtype == x.dtype for weight in weights)
        and forced() is None
        and unwatched((x, weights))
    )


def shift_mix(x: Tensor, weights: list[Tensor], shift: int) -> Tensor:
    """x [B, T, H, e], weights [H, e] or [H, 1] -> [B, T, H, e]"""
    return _Weighted.apply(x, shift, *weights)


def _pairs(count: int, shift: int, T: int) -> list[tuple[slice, slice]]:
    """For x itself, its earlier and its later partner: the rows that have one, and where those stand."""
    reach = min(shift, T)
    late, early, all_rows = slice(reach, T), slice(0, T - reach), slice(0, T)
    return [(all_rows, all_rows), (late, early), (early, late)][:count]


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: int, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.shift = shift
        y = x * weights[0]
        for weight, (rows, others) in zip(weights[1:], _pairs(len(weights), shift, x.shape[1])[1:], strict=True):
            y[:, rows].addcmul_(x[:, others], weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        pairs = _pairs(len(weights), ctx.shift, x.shape[1])
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy * weights[0]
            for weight, (rows, others) in zip(weights[1:], pairs[1:], strict=True):
                dx[:, others].addcmul_(dy[:, rows], weight)
        grads = [(dy[:, rows] * x[:, others]).sum((0, 1)) for rows, others in pairs]
        return dx, None, *(grad.sum_to_size(weight.shape) for grad, weight in zip(grads, weights, strict=True))
