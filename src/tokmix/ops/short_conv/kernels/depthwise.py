"""Kernels of the short convolution.

    y_t = Σ_j w_j ⊙ x_{t-b_j}        dx_t = Σ_j w_j ⊙ dy_{t+b_j}        dw_j = Σ_t dy_{t+b_j} ⊙ x_t        b_j = K - 1 - j

    x ── rows t, t-1, ... ──> y row t          x ───── row t ───────────┐
                                               dy ─── rows t, t+1, ... ─┴─> dx row t, partial dw

Bandwidth is all that counts: each tensor moves through memory once, and the neighbours come from the caches. Each program sums the
weights' gradients over its rows; those sums are added after, so that there are no atomics and every run gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.tiles import offsets, row_strides, turns_and_programs
from tokmix.ops.sizes import cdiv, next_power_of_2

FORWARD = (8, 4)  # rows and warps of a program
BACKWARD = (2, 2, 8)  # rows, warps, programs per multiprocessor
TILE = 512  # channels of a program


@triton.jit
def conv_forward(
    X, W, Y, total, T, batch_stride, row_stride,
    D: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    inside, t = (rows < total)[:, None], (rows % T)[:, None]
    at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
    y = tl.zeros([BR, BD], tl.float32)
    for tap in tl.static_range(K):
        back = K - 1 - tap
        x = tl.load(X + at - tl.cast(back, tl.int64) * row_stride, mask=inside & (t >= back) & wide, other=0.0).to(tl.float32)
        y += tl.load(W + cols * K + tap, mask=cols < D, other=0.0).to(tl.float32)[None, :] * x
    to = rows[:, None].to(tl.int64) * D + cols[None, :]
    store_rounded(Y + to, y, inside & wide)


@triton.jit(do_not_specialize=["turns"])
def conv_backward(
    X, W, DY, DX, SUMS, total, T, batch_stride, row_stride, dy_batch_stride, dy_row_stride, turns,
    D: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    taps = tl.arange(0, KP)
    wide = (cols < D)[None, :]
    dw = tl.zeros([KP, BD], tl.float32)
    for turn in range(turns):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        inside, left = (rows < total)[:, None], (T - 1 - rows % T)[:, None]
        x = tl.load(X + offsets(rows, T, batch_stride, row_stride) + cols[None, :], mask=inside & wide, other=0.0).to(tl.float32)
        at = offsets(rows, T, dy_batch_stride, dy_row_stride) + cols[None, :]
        dx = tl.zeros([BR, BD], tl.float32)
        for tap in tl.static_range(K):
            ahead = K - 1 - tap
            later = DY + at + tl.cast(ahead, tl.int64) * dy_row_stride
            dy = tl.load(later, mask=inside & (left >= ahead) & wide, other=0.0).to(tl.float32)
            dx += tl.load(W + cols * K + tap, mask=cols < D, other=0.0).to(tl.float32)[None, :] * dy
            dw += tl.where((taps == tap)[:, None], tl.sum(dy * x, 0)[None, :], 0.0)
        to = rows[:, None].to(tl.int64) * D + cols[None, :]
        store_rounded(DX + to, dx, inside & wide)
    kept = (tl.program_id(0) * K + taps)[:, None] * D + cols[None, :]
    tl.store(SUMS + kept, dw, mask=(taps < K)[:, None] & wide)


def forward(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, L, D], weight [D, K] -> [B, L, D]"""
    B, L, D = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, *strides = row_strides(x)
    rows, warps = FORWARD
    tile = min(TILE, next_power_of_2(D))
    conv_forward[cdiv(B * L, rows), cdiv(D, tile)](
        x, weight.contiguous(), y, B * L, L, *strides, D, weight.shape[1], rows, tile, num_warps=warps
    )
    return y


def backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and that of the weight in float32."""
    B, L, D = x.shape
    K = weight.shape[1]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, *strides = row_strides(x)
    dy, *dy_strides = row_strides(dy)
    rows, warps, per_processor = BACKWARD
    turns, programs = turns_and_programs(x, rows, per_processor)
    sums = torch.empty(programs, K, D, dtype=torch.float32, device=x.device)
    tile = min(TILE, next_power_of_2(D))
    conv_backward[programs, cdiv(D, tile)](
        x, weight.contiguous(), dy, dx, sums, B * L, L, *strides, *dy_strides, turns, D, K, next_power_of_2(K), rows, tile, num_warps=warps
    )
    return dx, sum_partials(sums[None])[0].mT
