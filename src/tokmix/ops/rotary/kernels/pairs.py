"""The kernel of rotary codes: x is read once and y written once.

    y_a = a cos - b sin        y_b = a sin + b cos        x = [a | b | rest], the rest stays as it is

A program takes one token and all of its heads, so its cosines and sines are read once. y lies token by token, as projections do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.sizes import cdiv, next_power_of_2

TILE = 2048  # numbers of a program's tile


@triton.jit
def turn(
    X, COS, SIN, Y, L, batch_stride, head_stride, row_stride,
    BACK: tl.constexpr, H: tl.constexpr, E: tl.constexpr, BH: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    row, heads = tl.program_id(0), tl.program_id(1) * BH + tl.arange(0, BH)
    t, cols = row % L, tl.arange(0, BE)
    pairs = cols < E // 2
    cos = tl.load(COS + t * (E // 2) + cols, mask=pairs, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(SIN + t * (E // 2) + cols, mask=pairs, other=0.0).to(tl.float32)[None, :]
    if BACK:
        sin = -sin
    inside = (heads < H)[:, None] & pairs[None, :]
    start = X + (row // L).to(tl.int64) * batch_stride + t.to(tl.int64) * row_stride + heads[:, None].to(tl.int64) * head_stride
    at = start + cols[None, :]
    to = Y + row.to(tl.int64) * H * E + heads[:, None] * E
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + E // 2, mask=inside, other=0.0).to(tl.float32)
    store_rounded(to + cols[None, :], a * cos - b * sin, inside)
    store_rounded(to + cols[None, :] + E // 2, a * sin + b * cos, inside)
    if E % 2 == 1:
        last = (heads < H)[:, None]
        store_rounded(to + E - 1, tl.load(start + E - 1, mask=last, other=0.0).to(tl.float32), last)


def turned(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """x [B, H, L, E], cos and sin [L, E // 2] -> [B, H, L, E]"""
    B, H, L, E = x.shape
    y = torch.empty(B, L, H, E, dtype=x.dtype, device=x.device).transpose(1, 2)
    columns = next_power_of_2(E // 2)
    tile = max(1, min(next_power_of_2(H), TILE // columns))
    strides = x.stride()[:3]
    turn[B * L, cdiv(H, tile)](x, cos.contiguous(), sin.contiguous(), y, L, *strides, back, H, E, tile, columns, num_warps=4)
    return y


def turned_back(dy: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """By the opposite angle, which is the gradient."""
    return turned(dy, cos, sin, back=True)
