"""The short convolution of whole rows in a third of the passes over memory: shifts are views, and sums are added in place.

The same formulas as in `triton`, written in torch; its gradients can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, L, D], weight [D, K] -> [B, L, D]"""
    return _ShortConv.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


def _pairs(taps: int, L: int) -> list[tuple[int, slice, slice]]:
    """(tap, the rows that have a partner so far back, where those stand), the current token's first."""
    return [(taps - 1 - back, slice(back, L), slice(0, L - back)) for back in range(min(taps, L))]


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        (now, _, _), *earlier = _pairs(weight.shape[1], x.shape[1])
        y = x * weight[:, now]
        for tap, rows, others in earlier:
            y[:, rows].addcmul_(x[:, others], weight[:, tap])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        pairs = _pairs(weight.shape[1], x.shape[1])
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            (now, _, _), *earlier = pairs
            dx = dy * weight[:, now]
            for tap, rows, others in earlier:
                dx[:, others].addcmul_(dy[:, rows], weight[:, tap])
        if ctx.needs_input_grad[1]:
            found = {tap: (dy[:, rows] * x[:, others]).sum((0, 1)) for tap, rows, others in pairs}
            dweight = torch.stack([found.get(tap, torch.zeros_like(weight[:, 0])) for tap in range(weight.shape[1])], 1)
        return dx, dweight
