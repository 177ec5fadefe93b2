"""Kernels of the LayerNorm on HyperMixing's output, over all heads.

    n = (z - mean) rstd,  y = γ ⊙ n + β
    dz = rstd (γ ⊙ dy - mean(γ ⊙ dy) - n mean(γ ⊙ dy ⊙ n)),  dγ = Σ dy ⊙ n,  dβ = Σ dy

It is not an epilogue of the product, because a row's heads are in different programs: reading z again at full
bandwidth is quicker than one program that walks over all heads. Rows that hold no token have rstd 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.tiles import normalised, offsets, row_strides, turns_and_programs
from tokmix.ops.sizes import cdiv, next_power_of_2

FORWARD = (4, 2)  # rows and warps of a program: the fastest on an H200 at 512 channels
BACKWARD = (2, 2, 8, 3)  # rows, warps, programs per multiprocessor, stages of its loop


@triton.jit
def layer_norm_forward(Z, GAIN, BIAS, Y, MEAN, RSTD, total, eps, SOME: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """SOME: only rows whose RSTD is not zero hold a token; the others become zero."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    cols = tl.arange(0, BD)[None, :]
    real = rows < total
    if SOME:
        real = tl.load(RSTD + rows, mask=real, other=0.0) > 0
    at = rows.to(tl.int64) * D
    z = tl.load(Z + at + cols, mask=real & (cols < D), other=0.0).to(tl.float32)
    n, mean, rstd = normalised(z, cols < D, D, eps)
    gain = tl.load(GAIN + cols, mask=cols < D, other=0.0).to(tl.float32)
    bias = tl.load(BIAS + cols, mask=cols < D, other=0.0).to(tl.float32)
    y = n * gain + bias
    if SOME:
        y = tl.where(real, y, 0.0)
    store_rounded(Y + at + cols, y, (rows < total) & (cols < D))
    tl.store(MEAN + rows, mean, mask=real)
    tl.store(RSTD + rows, rstd, mask=real)


@triton.jit(do_not_specialize=["turns"])
def layer_norm_backward(
    DY, Z, GAIN, MEAN, RSTD, DZ, SUMS, total, T, dy_batch, dy_row, turns,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    gain = tl.load(GAIN + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    dgain = tl.zeros([BR, BD], tl.float32)
    dbias = tl.zeros([BR, BD], tl.float32)
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        inside = (rows < total)[:, None]
        rstd = tl.load(RSTD + rows[:, None], mask=inside, other=0.0)
        mean = tl.load(MEAN + rows[:, None], mask=inside, other=0.0)
        at = rows[:, None].to(tl.int64) * D + cols[None, :]
        z = tl.load(Z + at, mask=inside & wide, other=0.0).to(tl.float32)
        dy = tl.load(DY + offsets(rows, T, dy_batch, dy_row) + cols[None, :], mask=inside & wide, other=0.0).to(tl.float32)
        dy = tl.where(rstd > 0, dy, 0.0)
        n = (z - mean) * rstd
        if BD != D:
            n = tl.where(wide, n, 0.0)
        dgain += dy * n
        dbias += dy
        g = dy * gain
        dz = (g - tl.sum(g, 1, keep_dims=True) / D - n * (tl.sum(g * n, 1, keep_dims=True) / D)) * rstd
        store_rounded(DZ + at, dz, inside & wide)
    kept = tl.program_id(0) * D + cols
    tl.store(SUMS + kept, tl.sum(dgain, 0), mask=cols < D)
    tl.store(SUMS + tl.num_programs(0) * D + kept, tl.sum(dbias, 0), mask=cols < D)


def forward(z: Tensor, gain: Tensor, bias: Tensor, eps: float, rstd: Tensor, some: bool) -> tuple[Tensor, Tensor]:
    """z [B, T, D] -> y and the rows' means; writes rstd [B * T], which tells the rows with tokens where only some have."""
    B, T, D = z.shape
    y = torch.empty_like(z)
    mean = (torch.zeros_like if some else torch.empty_like)(rstd)
    rows, warps = FORWARD
    grid = (cdiv(B * T, rows),)
    layer_norm_forward[grid](
        z, gain.contiguous(), bias.contiguous(), y, mean, rstd, B * T, eps, some, D, rows, next_power_of_2(D), num_warps=warps
    )
    return y, mean


def backward(dy: Tensor, z: Tensor, gain: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of z, zero where no token is, and those of gain and bias, [2, D] in float32."""
    B, T, D = z.shape
    dy, *strides = row_strides(dy)
    dz = torch.empty_like(z)
    rows, warps, per_processor, stages = BACKWARD
    turns, programs = turns_and_programs(z, rows, per_processor)
    sums = torch.empty(2, programs, D, dtype=torch.float32, device=z.device)
    layer_norm_backward[(programs,)](
        dy,
        z,
        gain.contiguous(),
        mean,
        rstd,
        dz,
        sums,
        B * T,
        T,
        *strides,
        turns,
        D,
        rows,
        next_power_of_2(D),
        stages,
        num_warps=warps,
    )
    return dz, sum_partials(sums)
