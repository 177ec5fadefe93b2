"""Kernels of the shift mix with matrices: one product for all sources, then the shift on its way out.

    q = x [A | B (| C)]  (product)      y_t = q_t[A] + q_{t-s}[B] (+ q_{t+s}[C])
    dq_t = [dy_t | dy_{t+s} (| dy_{t-s})]      dx = dq [A | B (| C)]ᵀ,  [dA | dB (| dC)] = xᵀ dq  (products)

Multiplying before shifting leaves x alone to be kept, and nothing to be copied for padding or packing. q and dq are
[H, B * T, n e], a head after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.gated import by_heads
from tokmix.ops.shift_mix.kernels.tiles import distances, neighbours, offsets, row_strides
from tokmix.ops.sizes import cdiv, next_power_of_2

FORWARD = (4, 4)  # rows and warps of a program
BACKWARD = (4, 4)
TILE = 1024  # channels of a program


@triton.jit
def placed(rows, cols, total, E: tl.constexpr, N: tl.constexpr):
    """Offsets in [H, B * T, N * E] of the first of N sources of elements of [B, T, D]."""
    return (cols // E)[None, :].to(tl.int64) * total * (N * E) + rows.to(tl.int64) * (N * E) + (cols % E)[None, :]


@triton.jit(do_not_specialize=["shift"])
def bring_together(
    Q, TABLE, PLACES, Y, total, T, shift, D: tl.constexpr, E: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr
):
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    before, after = neighbours(PLACES, rows, total, T)
    far = distances(TABLE, shift, cols, E, D)
    at = placed(rows[:, None], cols, total, E, N)
    hop = far * (N * E)
    y = tl.load(Q + at, mask=(before >= 0) & wide, other=0.0).to(tl.float32)
    y += tl.load(Q + at - hop + E, mask=(before >= far) & wide, other=0.0).to(tl.float32)
    if N == 3:
        y += tl.load(Q + at + hop + 2 * E, mask=(after >= far) & wide, other=0.0).to(tl.float32)
    to = rows[:, None].to(tl.int64) * D + cols[None, :]
    store_rounded(Y + to, y, (rows < total)[:, None] & wide)


@triton.jit(do_not_specialize=["shift"])
def spread_out(
    DY, TABLE, PLACES, DQ, total, T, batch_stride, row_stride, shift,
    D: tl.constexpr, E: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    before, after = neighbours(PLACES, rows, total, T)
    far = distances(TABLE, shift, cols, E, D)
    at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
    hop = far * row_stride
    inside = (rows < total)[:, None] & wide
    to = placed(rows[:, None], cols, total, E, N)
    tl.store(DQ + to, tl.load(DY + at, mask=(before >= 0) & wide, other=0.0), mask=inside)
    tl.store(DQ + to + E, tl.load(DY + at + hop, mask=(after >= far) & wide, other=0.0), mask=inside)
    if N == 3:
        tl.store(DQ + to + 2 * E, tl.load(DY + at - hop, mask=(before >= far) & wide, other=0.0), mask=inside)


def forward(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    """x [B, T, D], weights [H, e, e] each -> [B, T, D]. x is finite at padding."""
    B, T, D = x.shape
    weights = [a, b] if c is None else [a, b, c]
    heads, n = weights[0].shape[0], len(weights)
    q = torch.bmm(by_heads(x, heads), torch.cat(weights, dim=2))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, warps = FORWARD
    tile = min(TILE, next_power_of_2(D))
    grid = (cdiv(B * T, rows), cdiv(D, tile))
    bring_together[grid](q, table, places, y, B * T, T, shift, D, D // heads, n, rows, tile, num_warps=warps)
    return y


def backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of the weights side by side, [H, e, n e]."""
    B, T, D = x.shape
    weights = [a, b] if c is None else [a, b, c]
    heads, n = weights[0].shape[0], len(weights)
    dy, *strides = row_strides(dy)
    dq = torch.empty(heads, B * T, n * D // heads, dtype=x.dtype, device=x.device)
    rows, warps = BACKWARD
    tile = min(TILE, next_power_of_2(D))
    grid = (cdiv(B * T, rows), cdiv(D, tile))
    spread_out[grid](dy, table, places, dq, B * T, T, *strides, shift, D, D // heads, n, rows, tile, num_warps=warps)
    dx = torch.bmm(dq, torch.cat(weights, dim=2).mT)
    return dx.transpose(0, 1).reshape(B, T, D), torch.bmm(by_heads(x, heads).mT, dq)
