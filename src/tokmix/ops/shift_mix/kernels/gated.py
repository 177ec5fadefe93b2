"""Kernels of the gated shift mix: everything except the matrix product, which is the library's.

    p = W x  (product)        g = sigmoid(p + c),  z = x_{t-s}, or the mean of x_{t-s} and x_{t+s}
    y = z + g ⊙ (x - z)

    dp_t = dy_t ⊙ (x_t - z_t) ⊙ g_t (1 - g_t),  dc = Σ dp_t,  dW = xᵀ dp  (product)
    dx_t = dy_t ⊙ g_t + (dy ⊙ (1 - g))_{t+s} + W dp_t  (product)

p and dp are [H, B * T, e], a head after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.tiles import distances, neighbours, offsets, per_channel, row_strides, turns_and_programs
from tokmix.ops.sizes import cdiv, next_power_of_2

FORWARD = (4, 4)  # rows and warps of a program: the fastest on an H200 at 512 channels
BACKWARD = (2, 4, 8, 1)  # rows, warps, programs per multiprocessor, stages of its loop
TILE = 1024  # channels of a program


@triton.jit
def by_head(rows, cols, total, E: tl.constexpr):
    """Offsets of elements of [B, T, D] in [H, B * T, E]."""
    return (cols // E)[None, :].to(tl.int64) * total * E + rows.to(tl.int64) * E + (cols % E)[None, :]


@triton.jit
def partner(X, at, hop, before, after, far, wide, BOTH: tl.constexpr):
    """z of the module's formulas."""
    z = tl.load(X + at - hop, mask=(before >= far) & wide, other=0.0).to(tl.float32)
    if BOTH:
        z = 0.5 * (z + tl.load(X + at + hop, mask=(after >= far) & wide, other=0.0).to(tl.float32))
    return z


@triton.jit
def passed_on(DY, P, bias, dy_at, p_at, there):
    """dy ⊙ (1 - g) of the rows at dy_at, zero outside of `there`."""
    dy = tl.load(DY + dy_at, mask=there, other=0.0).to(tl.float32)
    return dy * (1.0 - tl.sigmoid(tl.load(P + p_at, mask=there, other=0.0).to(tl.float32) + bias))


@triton.jit(do_not_specialize=["shift"])
def gate_forward(
    X, P, BIAS, TABLE, PLACES, Y, total, T, batch_stride, row_stride, shift,
    D: tl.constexpr, E: tl.constexpr, BOTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    before, after = neighbours(PLACES, rows, total, T)
    far = distances(TABLE, shift, cols, E, D)
    real = (before >= 0) & wide
    at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
    x = tl.load(X + at, mask=real, other=0.0).to(tl.float32)
    z = partner(X, at, far * row_stride, before, after, far, wide, BOTH)
    p = tl.load(P + by_head(rows[:, None], cols, total, E), mask=real, other=0.0).to(tl.float32)
    y = tl.where(real, z + tl.sigmoid(p + per_channel(BIAS, cols, D, E, E)) * (x - z), 0.0)
    to = rows[:, None].to(tl.int64) * D + cols[None, :]
    store_rounded(Y + to, y, (rows < total)[:, None] & wide)


@triton.jit(do_not_specialize=["shift", "turns"])
def gate_backward(
    X, DY, P, BIAS, TABLE, PLACES, DX, DP, SUMS, total, T, batch_stride, row_stride, dy_batch_stride, dy_row_stride, shift, turns,
    D: tl.constexpr, E: tl.constexpr, BOTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX gets all but W dp, in the layout of P."""
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    far = distances(TABLE, shift, cols, E, D)
    bias = per_channel(BIAS, cols, D, E, E)
    dbias = tl.zeros([BR, BD], tl.float32)
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        before, after = neighbours(PLACES, rows, total, T)
        real = (before >= 0) & wide
        at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
        dy_at = offsets(rows, T, dy_batch_stride, dy_row_stride) + cols[None, :]
        p_at = by_head(rows[:, None], cols, total, E)
        x = tl.load(X + at, mask=real, other=0.0).to(tl.float32)
        z = partner(X, at, far * row_stride, before, after, far, wide, BOTH)
        dy = tl.load(DY + dy_at, mask=real, other=0.0).to(tl.float32)
        g = tl.sigmoid(tl.load(P + p_at, mask=real, other=0.0).to(tl.float32) + bias)
        dp = dy * (x - z) * g * (1.0 - g)
        dbias += dp
        dz = passed_on(DY, P, bias, dy_at + far * dy_row_stride, p_at + far * E, (after >= far) & wide)
        if BOTH:
            dz = 0.5 * (dz + passed_on(DY, P, bias, dy_at - far * dy_row_stride, p_at - far * E, (before >= far) & wide))
        inside = (rows < total)[:, None] & wide
        store_rounded(DP + p_at, dp, inside)
        store_rounded(DX + p_at, dy * g + dz, inside)
    tl.store(SUMS + tl.program_id(0) * D + cols, tl.sum(dbias, 0), mask=cols < D)


def by_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, D] -> a view [H, B * T, e]"""
    return x.flatten(0, 1).unflatten(1, (heads, -1)).transpose(0, 1)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], weight [H, e, e], bias [H, e] -> y [B, T, D] and p [H, B * T, e]. x is finite at padding."""
    B, T, D = x.shape
    heads = weight.shape[0]
    p = torch.bmm(by_heads(x, heads), weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, *strides = row_strides(x)
    rows, warps = FORWARD
    tile = min(TILE, next_power_of_2(D))
    gate_forward[cdiv(B * T, rows), cdiv(D, tile)](
        x, p, bias.contiguous(), table, places, y, B * T, T, *strides, shift, D, D // heads, both_ways, rows, tile, num_warps=warps
    )
    return y, p


def backward(
    dy: Tensor, p: Tensor, x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and, in float32, bias."""
    B, T, D = x.shape
    heads = weight.shape[0]
    x, *strides = row_strides(x)
    dy, *dy_strides = row_strides(dy)
    dx, dp = torch.empty_like(p), torch.empty_like(p)
    rows, warps, per_processor, stages = BACKWARD
    turns, programs = turns_and_programs(x, rows, per_processor)
    sums = torch.empty(programs, D, dtype=torch.float32, device=x.device)
    tile = min(TILE, next_power_of_2(D))
    gate_backward[programs, cdiv(D, tile)](
        x, dy, p, bias.contiguous(), table, places, dx, dp, sums, B * T, T, *strides, *dy_strides, shift, turns,
        D, D // heads, both_ways, rows, tile, stages, num_warps=warps,
    )  # fmt: skip
    dx.baddbmm_(dp, weight.mT)
    dweight = torch.bmm(by_heads(x, heads).mT, dp)
    return dx.transpose(0, 1).reshape(B, T, D), dweight, sum_partials(sums[None]).view(heads, -1)
