"""The kernel of linear attention that reads both ways: q, k and v are read once, y is written once.

    outer = Σ φ(k)ᵀ v [e, e]     total = Σ φ(k) [e]     y = φ(q) outer / φ(q) · total,  φ = elu + 1

A program takes one head of one row of the batch; the sums stay in its registers. Sums are float32 and divided by the length before
they are rounded, so that float16 holds them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.rounding import operand, store_rounded
from tokmix.ops.sizes import next_power_of_2

ROWS = 64  # tokens of a tile


@triton.jit
def feature(x):
    x = x.to(tl.float32)
    return tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0)))


@triton.jit
def read(
    Q, K, V, REAL, Y, L, H, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    MASKED: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    KIND: tl.constexpr = V.dtype.element_ty
    cols = tl.arange(0, BE)
    wide = (cols < E)[None, :]
    outer, total = tl.zeros([BE, BE], dtype=tl.float32), tl.zeros([BE], dtype=tl.float32)
    for start in range(0, L, BL):
        rows = start + tl.arange(0, BL)
        real = rows < L
        if MASKED:
            real = real & (tl.load(REAL + batch * L + rows, mask=real, other=0) != 0)
        inside, at = real[:, None] & wide, rows[:, None].to(tl.int64)
        k = tl.load(K + batch * k_batch + head * k_head + at * k_row + cols[None, :], mask=inside, other=0.0)
        v = tl.load(V + batch * v_batch + head * v_head + at * v_row + cols[None, :], mask=inside, other=0.0)
        k = tl.where(inside, feature(k), 0)
        outer = tl.dot(tl.trans(operand(k, KIND)), operand(v, KIND), outer, input_precision="ieee")
        total += tl.sum(k, axis=0)
    outer, total = operand(outer / L, KIND), total / L
    for start in range(0, L, BL):
        rows = start + tl.arange(0, BL)
        inside, at = (rows < L)[:, None] & wide, rows[:, None].to(tl.int64)
        q = feature(tl.load(Q + batch * q_batch + head * q_head + at * q_row + cols[None, :], mask=inside, other=0.0))
        below = tl.maximum(tl.sum(q * total[None, :], axis=1), 1e-30)
        y = tl.dot(operand(q, KIND), outer, input_precision="ieee") / below[:, None]
        store_rounded(Y + ((batch * L + at) * H + head) * E + cols[None, :], y, inside)


def forward(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
    """q, k, v [B, H, L, e] before the feature map, real [B, L] bool -> [B, H, L, e], token by token in memory"""
    B, H, L, E = q.shape
    y = torch.empty(B, L, H, E, dtype=v.dtype, device=v.device)
    strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]
    mask = y if real is None else real.to(torch.uint8).contiguous()
    read[(B * H,)](q, k, v, mask, y, L, H, *strides, real is not None, E, max(16, next_power_of_2(E)), ROWS, num_warps=4)
    return y.transpose(1, 2)
