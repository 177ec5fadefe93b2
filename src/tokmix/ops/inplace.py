"""Each token plus weighted others at fixed distances, in plain torch with few passes over memory: shifts are views, and sums are added
in place. The same formulas as in the kernels of `shift_mix` and `short_conv`; its gradients can be differentiated again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context

Stretch = tuple[int, int]  # first row, number of rows


def weighted(x: Tensor, distances: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Σ_j w_j ⊙ x_{t - d_j}, zero where a token has no partner: x [B, L, ...], the first distance 0, later partners negative; a weight has
    the shape after L, or one that broadcasts to it."""
    assert distances[0] == 0 and len(distances) == len(weights)
    return _Weighted.apply(x, tuple(distances), *weights)  # type: ignore[no-any-return, no-untyped-call]


def _pairs(distances: Sequence[int], L: int) -> list[tuple[Stretch, Stretch]]:
    """For each distance: the rows that have a partner, and the partners' rows."""
    late = {far: (min(abs(far), L), L - min(abs(far), L)) for far in distances}
    early = {far: (0, L - min(abs(far), L)) for far in distances}
    return [(late[far], early[far]) if far >= 0 else (early[far], late[far]) for far in distances]


def _cut(x: Tensor, stretch: Stretch) -> Tensor:
    """A view of x [B, L, ...]. Not a slice: autograd cannot batch the view of a slice that takes everything."""
    return x.narrow(1, *stretch)


class _Kept(Context, Protocol):
    distances: tuple[int, ...]


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Kept, x: Tensor, distances: tuple[int, ...], *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.distances = distances
        y = x * weights[0]
        for weight, (rows, others) in zip(weights[1:], _pairs(distances, x.shape[1])[1:], strict=True):
            _cut(y, rows).addcmul_(_cut(x, others), weight)
        return y

    @staticmethod
    def backward(ctx: _Kept, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, *weights = ctx.saved_tensors
        pairs = _pairs(ctx.distances, x.shape[1])
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy * weights[0]
            for weight, (rows, others) in zip(weights[1:], pairs[1:], strict=True):
                _cut(dx, others).addcmul_(_cut(dy, rows), weight)
        grads = [(_cut(dy, rows) * _cut(x, others)).sum((0, 1)) for rows, others in pairs]
        return dx, None, *(grad.sum_to_size(weight.shape) for grad, weight in zip(grads, weights, strict=True))
