"""Turning pairs of channels: one kernel if device, dtype and shape allow; few passes outside compilers and tracers; else plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core import positions
from tokmix.ops.dispatch import forced, use_triton
from tokmix.ops.fast_call import Context, unwatched
from tokmix.ops.rotary import op

WIDEST = 512  # channels of a head that a program can hold


def rotate(x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    """`positions.rotate`: x [B, H, L, E], cosines and sines [L, E // 2] or [B, 1, L, E // 2] in the dtype of x."""
    cos, sin = turned
    alike = x.numel() > 0 and x.shape[3] > 1 and cos.dtype == sin.dtype == x.dtype
    if use_triton(x, x.dtype, alike and cos.dim() == 2 and x.shape[3] <= WIDEST and x.stride(3) == 1):
        return op.forward.entry(x, cos, sin)(x, cos, sin)
    if alike and forced() is None and unwatched((x, cos, sin)):
        return _Rotated.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]
    return positions.rotate(x, turned)


class _Rotated(torch.autograd.Function):
    """Four passes over half of the channels, written into the result; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        y, half = torch.empty_like(x), x.shape[-1] // 2
        a, b = x[..., :half], x[..., half : 2 * half]
        torch.mul(a, cos, out=y[..., :half]).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=y[..., half : 2 * half]).addcmul_(a, sin)
        y[..., 2 * half :] = x[..., 2 * half :]
        return y

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return rotate(dy, (cos, -sin)), None, None
