"""Shared by the kernels of shift mixing: rows of a [B, T, D] tensor, and the offsets of a row's partners.

`places` [2, B, T] holds how many tokens of its own sequence come before and after each token, -1 at padding. Without
it every row is one whole sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops import flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.dispatch import processors
from tokmix.ops.sizes import cdiv


@triton.jit
def offsets(rows, T, batch_stride, row_stride):
    """Offsets of flat rows of a [B, T, D] tensor, [R, 1]."""
    return ((rows // T).to(tl.int64) * batch_stride + (rows % T).to(tl.int64) * row_stride)[:, None]


@triton.jit
def neighbours(PLACES, rows, total, T):
    """How many tokens of its own sequence come before and after each row, [R, 1] each; -1 at padding."""
    inside = rows < total
    if PLACES is None:
        before = tl.where(inside, rows % T, -1)
        after = tl.where(inside, T - 1 - rows % T, -1)
    else:
        before = tl.load(PLACES + rows, mask=inside, other=-1)
        after = tl.load(PLACES + total + rows, mask=inside, other=-1)
    return before[:, None], after[:, None]


@triton.jit
def distances(TABLE, shift, cols, E: tl.constexpr, D: tl.constexpr):
    """The shift of each channel: one number, or [1, C] from the heads' table."""
    if TABLE is None:
        far = shift
    else:
        far = tl.load(TABLE + cols // E, mask=cols < D, other=0)[None, :]
    return far.to(tl.int64)


@triton.jit
def per_channel(W, cols, D: tl.constexpr, E: tl.constexpr, WIDTH: tl.constexpr):
    """A weight a channel from [H, WIDTH], [1, C]; WIDTH is E, or 1 for one weight a head."""
    at = cols if WIDTH == E else cols // E
    return tl.load(W + at, mask=cols < D, other=0.0).to(tl.float32)[None, :]


@triton.jit
def normalised(x, wide, D: tl.constexpr, eps):
    """Rows of x [R, C] to mean 0 and variance 1 (zero where not `wide`), their mean and 1 / standard deviation."""
    mean = tl.sum(x, 1, keep_dims=True) / D
    x = x - mean
    if x.shape[1] != D:
        x = tl.where(wide, x, 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / D + eps)
    return x * rstd, mean, rstd


def row_strides(x: Tensor) -> tuple[Tensor, int, int]:
    """x [B, T, D] with neighbouring channels side by side in memory, and its other two strides."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1)


def optional_contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def turns_and_programs(x: Tensor, rows: int, per_processor: int) -> tuple[int, int]:
    """(turns, programs) so that programs with this many rows per turn cover x [B, T, D]."""
    blocks = cdiv(x.shape[0] * x.shape[1], rows)
    turns = cdiv(blocks, processors(x.device) * per_processor)
    return turns, cdiv(blocks, turns)
