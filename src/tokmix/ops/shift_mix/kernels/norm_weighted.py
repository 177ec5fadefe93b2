"""Kernels of LayerNorm, weighted shift mix and residual as one op.

    n = γ ⊙ x̂ + β,  x̂ = LN(x)                         y_t  = x_t + a ⊙ n_t + b ⊙ n_{t-s} (+ c ⊙ n_{t+s})
    g_t = a ⊙ dy_t + b ⊙ dy_{t+s} (+ c ⊙ dy_{t-s})     dx_t = dy_t + LN'(γ ⊙ g_t)
    da = Σ dy_t ⊙ n_t,  db = Σ dy_{t+s} ⊙ n_t,  dγ = Σ g_t ⊙ x̂_t,  dβ = Σ g_t

A row's norm is recomputed wherever it is needed: the backward pass needs that of its own row alone, and the forward
pass has the whole partner row at hand, unless heads look at different rows; then a first kernel writes the moments.
At padding the residual passes and nothing is mixed.
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
    normalised,
    offsets,
    optional_contiguous,
    per_channel,
    row_strides,
    turns_and_programs,
)
from tokmix.ops.sizes import cdiv, next_power_of_2

# rows, warps, programs per multiprocessor and stages of its loop: the fastest on an H200 at 512 channels
FORWARD = (1, 1, 12, 4)
BACKWARD = (1, 1, 8, 4)


@triton.jit
def row_moments(X, MEAN, RSTD, total, T, batch_stride, row_stride, eps, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Mean and 1 / standard deviation of each row, for heads whose partners are in different rows."""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    inside = (rows < total)[:, None]
    x = tl.load(X + offsets(rows, T, batch_stride, row_stride) + cols[None, :], mask=inside & wide, other=0.0).to(tl.float32)
    _, mean, rstd = normalised(x, wide, D, eps)
    tl.store(MEAN + rows[:, None], mean, mask=inside)
    tl.store(RSTD + rows[:, None], rstd, mask=inside)


@triton.jit
def partner(X, MEAN, RSTD, at, source, there, weight, offset, wide, D: tl.constexpr, eps):
    """weight ⊙ x̂ + offset of the rows at `source`, zero where not `there`. Moments are recomputed unless given."""
    x = tl.load(X + at, mask=there, other=0.0).to(tl.float32)
    if MEAN is None:
        n, _, _ = normalised(x, wide, D, eps)
    else:
        n = (x - tl.load(MEAN + source, mask=there, other=0.0)) * tl.load(RSTD + source, mask=there, other=0.0)
    return tl.where(there, n * weight + offset, 0.0)


@triton.jit(do_not_specialize=["shift", "turns"])
def norm_forward(
    X, A, B, C, GAIN, BIAS, TABLE, PLACES, MEAN, RSTD, Y, total, T, batch_stride, row_stride, shift, turns, eps,
    D: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    far = distances(TABLE, shift, cols, E, D)
    gain = per_channel(GAIN, cols, D, E, E)
    bias = per_channel(BIAS, cols, D, E, E)
    # a ⊙ (γ ⊙ x̂ + β) is a weight and an offset of x̂, the same for all rows.
    a = per_channel(A, cols, D, E, WIDTH)
    b = per_channel(B, cols, D, E, WIDTH)
    a_weight, a_offset, b_weight, b_offset = a * gain, a * bias, b * gain, b * bias
    if C is not None:
        c = per_channel(C, cols, D, E, WIDTH)
        c_weight, c_offset = c * gain, c * bias
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        inside = (rows < total)[:, None] & wide
        before, after = neighbours(PLACES, rows, total, T)
        at = offsets(rows, T, batch_stride, row_stride) + cols[None, :]
        x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
        n, _, _ = normalised(x, wide, D, eps)
        mixed = n * a_weight + a_offset
        there = (before >= far) & wide
        mixed += partner(X, MEAN, RSTD, at - far * row_stride, rows[:, None] - far, there, b_weight, b_offset, wide, D, eps)
        if C is not None:
            there = (after >= far) & wide
            mixed += partner(X, MEAN, RSTD, at + far * row_stride, rows[:, None] + far, there, c_weight, c_offset, wide, D, eps)
        if PLACES is not None:
            mixed = tl.where(before >= 0, mixed, 0.0)
        store_rounded(Y + rows[:, None].to(tl.int64) * D + cols[None, :], x + mixed, inside)


# long: all gradients share one pass over the rows
@triton.jit(do_not_specialize=["shift", "turns"])
def norm_backward(
    X, DY, A, B, C, GAIN, BIAS, TABLE, PLACES, DX, SUMS,
    total, T, batch_stride, row_stride, dy_batch_stride, dy_row_stride, shift, turns, eps,
    D: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of dy_t and of dy_t ⊙ x̂_t, and the same for its partners, give all of the weights' gradients at the end."""
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    far = distances(TABLE, shift, cols, E, D)
    gain = per_channel(GAIN, cols, D, E, E)
    a_weight = per_channel(A, cols, D, E, WIDTH) * gain
    b_weight = per_channel(B, cols, D, E, WIDTH) * gain
    own = tl.zeros([BR, BD], tl.float32)
    own_n = tl.zeros([BR, BD], tl.float32)
    late = tl.zeros([BR, BD], tl.float32)
    late_n = tl.zeros([BR, BD], tl.float32)
    if C is not None:
        c_weight = per_channel(C, cols, D, E, WIDTH) * gain
        early = tl.zeros([BR, BD], tl.float32)
        early_n = tl.zeros([BR, BD], tl.float32)
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        inside = (rows < total)[:, None] & wide
        before, after = neighbours(PLACES, rows, total, T)
        real = (before >= 0) & wide
        at = offsets(rows, T, dy_batch_stride, dy_row_stride) + cols[None, :]
        x = tl.load(X + offsets(rows, T, batch_stride, row_stride) + cols[None, :], mask=real, other=0.0).to(tl.float32)
        residual = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
        dy = residual if PLACES is None else tl.where(real, residual, 0.0)
        later = tl.load(DY + at + far * dy_row_stride, mask=(after >= far) & wide, other=0.0).to(tl.float32)
        n, _, rstd = normalised(x, wide, D, eps)
        g = a_weight * dy + b_weight * later
        own += dy
        own_n += dy * n
        late += later
        late_n += later * n
        if C is not None:
            earlier = tl.load(DY + at - far * dy_row_stride, mask=(before >= far) & wide, other=0.0).to(tl.float32)
            g += c_weight * earlier
            early += earlier
            early_n += earlier * n
        dx = (g - tl.sum(g, 1, keep_dims=True) / D - n * (tl.sum(g * n, 1, keep_dims=True) / D)) * rstd
        if PLACES is not None:
            dx = tl.where(real, dx, 0.0)
        store_rounded(DX + rows[:, None].to(tl.int64) * D + cols[None, :], residual + dx, inside)
    bias = per_channel(BIAS, cols, D, E, E)
    a = per_channel(A, cols, D, E, WIDTH)
    b = per_channel(B, cols, D, E, WIDTH)
    dgain = a * own_n + b * late_n
    dbias = a * own + b * late
    to = SUMS + tl.program_id(0) * D + cols
    step = tl.num_programs(0) * D
    tl.store(to + 2 * step, tl.sum(gain * own_n + bias * own, 0), mask=cols < D)
    tl.store(to + 3 * step, tl.sum(gain * late_n + bias * late, 0), mask=cols < D)
    if C is not None:
        c = per_channel(C, cols, D, E, WIDTH)
        dgain += c * early_n
        dbias += c * early
        tl.store(to + 4 * step, tl.sum(gain * early_n + bias * early, 0), mask=cols < D)
    tl.store(to, tl.sum(dgain, 0), mask=cols < D)
    tl.store(to + step, tl.sum(dbias, 0), mask=cols < D)


def forward(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> Tensor:  # fmt: skip
    """As `weighted.forward`, with the norm's gain and bias [D]."""
    B, T, D = x.shape
    y = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, a.dtype), device=x.device)
    x, *strides = row_strides(x)
    heads, width = a.shape
    weights = (a.contiguous(), b.contiguous(), optional_contiguous(c))
    rows, warps, per_processor, stages = FORWARD
    turns, programs = turns_and_programs(x, rows, per_processor)
    tile = next_power_of_2(D)
    mean = rstd = None
    if table is not None:
        mean, rstd = torch.empty(2, B * T, dtype=torch.float32, device=x.device)
        row_moments[(cdiv(B * T, rows),)](x, mean, rstd, B * T, T, *strides, eps, D, rows, tile, num_warps=warps)
    norm_forward[(programs,)](
        x, *weights, gain.contiguous(), bias.contiguous(), table, places, mean, rstd, y, B * T, T, *strides, shift, turns, eps,
        D, D // heads, width, rows, tile, stages, num_warps=warps,
    )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, gain: Tensor, bias: Tensor, eps: float,
    shift: int, table: Tensor | None, places: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of x, and those of gain, bias and the weights per channel, [2 + n, D] in float32."""
    B, T, D = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, *strides = row_strides(x)
    dy, *dy_strides = row_strides(dy)
    heads, width = a.shape
    weights = (a.contiguous(), b.contiguous(), optional_contiguous(c))
    rows, warps, per_processor, stages = BACKWARD
    turns, programs = turns_and_programs(x, rows, per_processor)
    sums = torch.empty(4 if c is None else 5, programs, D, dtype=torch.float32, device=x.device)
    norm_backward[(programs,)](
        x, dy, *weights, gain.contiguous(), bias.contiguous(), table, places, dx, sums,
        B * T, T, *strides, *dy_strides, shift, turns, eps,
        D, D // heads, width, rows, next_power_of_2(D), stages, num_warps=warps,
    )  # fmt: skip
    return dx, sum_partials(sums)
