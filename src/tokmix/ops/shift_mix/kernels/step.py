"""The kernel of a decoding step: the next token of each row, in one pass, whatever the shift.

    z = ring[p mod s]   the token s places back     y = a ⊙ x + b ⊙ z, or z + g ⊙ (x - z), or z itself
    ring[p mod s] = x   p = p + 1                   with a norm: n = LN(x) in x's place, and y = x + ...

One program a row of the batch, so that a row's position can be read and counted on in one place. Ring and position
are changed in place. A row without a new token keeps both, and its y is zero (x itself with a norm).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops.kernels.rounding import store_rounded
from tokmix.ops.shift_mix.kernels.tiles import normalised, per_channel
from tokmix.ops.shift_mix.step_op import result_dtype
from tokmix.ops.sizes import next_power_of_2


@triton.jit(do_not_specialize=["shift"])
def step(
    X, RING, POSITION, NEW, A, B, P, C, GAIN, BIAS, Y, x_row, ring_row, new_row, shift, eps,
    D: tl.constexpr, WIDTH: tl.constexpr, BD: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BD)[None, :]
    wide = cols < D
    position = tl.load(POSITION + row)
    x = tl.load(X + row.to(tl.int64) * x_row + cols, mask=wide, other=0.0).to(tl.float32)
    more, there = 1, wide
    if NEW is not None:
        more = tl.load(NEW + row.to(tl.int64) * new_row).to(tl.int32)
        there = wide & (tl.zeros_like(cols) + more > 0)
    at = RING + row.to(tl.int64) * ring_row + (position % shift) * D + cols
    z = tl.load(at, mask=wide, other=0.0).to(tl.float32)
    kept, residual = x, tl.zeros([1, BD], tl.float32)
    if GAIN is not None:
        n, _, _ = normalised(x, wide, D, eps)
        channel = tl.arange(0, BD)
        kept, residual = n * per_channel(GAIN, channel, D, D, D) + per_channel(BIAS, channel, D, D, D), x
    if A is not None:
        channel = tl.arange(0, BD)
        y = per_channel(A, channel, D, D, WIDTH) * kept + per_channel(B, channel, D, D, WIDTH) * z
    elif P is not None:
        p = tl.load(P + row * D + cols, mask=wide, other=0.0).to(tl.float32) + per_channel(C, tl.arange(0, BD), D, D, D)
        y = z + tl.sigmoid(p) * (kept - z)
    else:
        y = z
    y = residual + tl.where(there, y, 0.0)
    tl.debug_barrier()  # every thread has read the position and the old row
    store_rounded(Y + row.to(tl.int64) * D + cols, y, wide)
    store_rounded(at, kept, there)
    if ADVANCE:
        tl.store(POSITION + row, position + more)


def run(
    x: Tensor, ring: Tensor, position: Tensor, new: Tensor | None, weights: list[Tensor], gate: Tensor | None, gate_bias: Tensor | None,
    gain: Tensor | None, bias: Tensor | None, eps: float, advance: bool,
) -> Tensor:  # fmt: skip
    """x [B, D], ring [B, s, D], position and new [B] -> y [B, D]. weights [1, D] or [1, 1] each, gate [B, D] before its bias."""
    B, D = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    assert ring.stride(2) == 1 and ring.stride(1) == D and position.is_contiguous()
    y = torch.empty(B, D, dtype=result_dtype(x, ring, weights, gate), device=x.device)
    a, b = (weight.contiguous() for weight in weights) if weights else (None, None)
    tile = next_power_of_2(D)
    step[(B,)](
        x, ring, position, new, a, b, gate, gate_bias, gain, bias, y, x.stride(0), ring.stride(0), 0 if new is None else new.stride(0),
        ring.shape[1], eps, D, 1 if a is None else a.shape[1], tile, advance, num_warps=min(8, max(1, tile // 256)),
    )  # fmt: skip
    return y
