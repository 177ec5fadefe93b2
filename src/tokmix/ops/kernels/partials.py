"""Adds up the partial sums of programs: without atomics, in the same order every time.

torch.sum takes more than twice as long on a GPU here: a column has a thousand parts, and there are only hundreds of columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.sizes import cdiv

# Parts and columns at a time, and warps: the fastest on an H200 of those tried, for up to so many parts and for more.
FEW, ADD_FEW, ADD_MANY = 64, (64, 64, 4), (256, 16, 8)


@triton.jit(do_not_specialize=["parts"])
def add_parts(PARTS, OUT, parts, width, BP: tl.constexpr, BW: tl.constexpr):
    cols = tl.program_id(0) * BW + tl.arange(0, BW)
    PARTS += tl.program_id(1).to(tl.int64) * parts * width + cols[None, :]
    total = tl.zeros([BP, BW], tl.float32)
    for i in range(0, parts, BP):
        rows = (i + tl.arange(0, BP))[:, None]
        total += tl.load(PARTS + rows.to(tl.int64) * width, mask=(rows < parts) & (cols < width)[None, :], other=0.0)
    tl.store(OUT + tl.program_id(1).to(tl.int64) * width + cols, tl.sum(total, 0), mask=cols < width)


def sum_partials(parts: Tensor) -> Tensor:
    """[n, P, ...] in float32, contiguous -> [n, ...], the sum over P"""
    n, count, *rest = parts.shape
    out = torch.empty(n, *rest, dtype=torch.float32, device=parts.device)
    width = out[0].numel()
    tile, columns, warps = ADD_FEW if count <= FEW else ADD_MANY
    add_parts[cdiv(width, columns), n](parts, out, count, width, tile, columns, num_warps=warps)
    return out
