"""Kernels of the weighted shift mix (variants ab and vector).

    y_t  = a ⊙ x_t + b ⊙ x_{t-s} (+ c ⊙ x_{t+s})
    dx_t = a ⊙ dy_t + b ⊙ dy_{t+s} (+ c ⊙ dy_{t-s})
    da   = Σ dy_t ⊙ x_t,  db = Σ dy_{t+s} ⊙ x_t,  dc = Σ dy_{t-s} ⊙ x_t

Only bandwidth matters: each tensor moves through memory once, and a partner row comes from L2, because programs
walk over the rows side by side. Each program sums the weights' gradients over its rows; those sums are added after,
so that there are no atomics and every run gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.tiles import (
    distances,
    neighbours,
    offsets,
    optional_contiguous,
    per_channel,
    row_strides,
    turns_and_programs,
)
from tokmix.ops.sizes import cdiv, next_power_of_2

FORWARD = (8, 4)  # rows and warps of a program: the fastest on an H200 at 512 channels
BACKWARD = (2, 2, 8, 3)  # rows, warps, programs per multiprocessor, stages of its loop
TILE = 1024  # channels of a program


@triton.jit(do_not_specialize=["shift"])
def weighted_forward(
    X, A, B, C, TABLE, PLACES, Y, total, T, batch_stride, row_stride, shift,
    D: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    before, after = neighbours(PLACES, rows, total, T)
    far = distances(TABLE, shift, cols, E, D)
    at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
    x = tl.load(X + at, mask=(before >= 0) & wide, other=0.0).to(tl.float32)
    earlier = tl.load(X + at - far * row_stride, mask=(before >= far) & wide, other=0.0).to(tl.float32)
    y = per_channel(A, cols, D, E, WIDTH) * x + per_channel(B, cols, D, E, WIDTH) * earlier
    if C is not None:
        later = tl.load(X + at + far * row_stride, mask=(after >= far) & wide, other=0.0).to(tl.float32)
        y += per_channel(C, cols, D, E, WIDTH) * later
    to = rows[:, None].to(tl.int64) * D + cols[None, :]
    store_rounded(Y + to, y, (rows < total)[:, None] & wide)


@triton.jit(do_not_specialize=["shift", "turns"])
def weighted_backward(
    X, DY, A, B, C, TABLE, PLACES, DX, SUMS, total, T, batch_stride, row_stride, dy_batch_stride, dy_row_stride, shift, turns,
    D: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    far = distances(TABLE, shift, cols, E, D)
    a = per_channel(A, cols, D, E, WIDTH)
    b = per_channel(B, cols, D, E, WIDTH)
    da = tl.zeros([BR, BD], tl.float32)
    db = tl.zeros([BR, BD], tl.float32)
    if C is not None:
        c = per_channel(C, cols, D, E, WIDTH)
        dc = tl.zeros([BR, BD], tl.float32)
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        before, after = neighbours(PLACES, rows, total, T)
        real = (before >= 0) & wide
        at = offsets(rows, T, dy_batch_stride, dy_row_stride) + cols[None, :]
        x = tl.load(X + offsets(rows, T, batch_stride, row_stride) + cols[None, :], mask=real, other=0.0).to(tl.float32)
        dy = tl.load(DY + at, mask=real, other=0.0).to(tl.float32)
        later = tl.load(DY + at + far * dy_row_stride, mask=(after >= far) & wide, other=0.0).to(tl.float32)
        dx = a * dy + b * later
        da += dy * x
        db += later * x
        if C is not None:
            earlier = tl.load(DY + at - far * dy_row_stride, mask=(before >= far) & wide, other=0.0).to(tl.float32)
            dx += c * earlier
            dc += earlier * x
        to = rows[:, None].to(tl.int64) * D + cols[None, :]
        store_rounded(DX + to, dx, (rows < total)[:, None] & wide)
    kept = tl.program_id(0) * D + cols
    step = tl.num_programs(0) * D
    tl.store(SUMS + kept, tl.sum(da, 0), mask=cols < D)
    tl.store(SUMS + step + kept, tl.sum(db, 0), mask=cols < D)
    if C is not None:
        tl.store(SUMS + 2 * step + kept, tl.sum(dc, 0), mask=cols < D)


def forward(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    """x [B, T, D], weights [H, e] or [H, 1] each -> [B, T, D]"""
    B, T, D = x.shape
    y = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, a.dtype), device=x.device)
    x, *strides = row_strides(x)
    heads, width = a.shape
    weights = (a.contiguous(), b.contiguous(), optional_contiguous(c))
    rows, warps = FORWARD
    tile = min(TILE, next_power_of_2(D))
    weighted_forward[cdiv(B * T, rows), cdiv(D, tile)](
        x,
        *weights,
        table,
        places,
        y,
        B * T,
        T,
        *strides,
        shift,
        D,
        D // heads,
        width,
        rows,
        tile,
        num_warps=warps,
    )
    return y


def backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of the weights per channel, [n, D] in float32."""
    B, T, D = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, *strides = row_strides(x)
    dy, *dy_strides = row_strides(dy)
    heads, width = a.shape
    weights = (a.contiguous(), b.contiguous(), optional_contiguous(c))
    rows, warps, per_processor, stages = BACKWARD
    turns, programs = turns_and_programs(x, rows, per_processor)
    sums = torch.empty(2 if c is None else 3, programs, D, dtype=torch.float32, device=x.device)
    tile = min(TILE, next_power_of_2(D))
    weighted_backward[programs, cdiv(D, tile)](
        x, dy, *weights, table, places, dx, sums, B * T, T, *strides, *dy_strides, shift, turns,
        D, D // heads, width, rows, tile, stages, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(sums)
