"""Kernels of HyperMixing for short sequences: a sequence's hidden state [k, e], far larger than its tokens, stays on chip.

A program takes one sequence, one head and a tile of its channels, and walks over the generated units. Transposed, this is
attention with GELU for softmax, where channels are the queries, units the keys and tokens the head size:

    hᵀ = Xᵀ W_1 [e, k]    gᵀ = GELU(scale hᵀ)    Zᵀ = readout gᵀ W_2ᵀ [e, N]
    dgᵀ = dZᵀ W_2         dhᵀ = scale readout dgᵀ ⊙ GELU'(scale hᵀ)
    dXᵀ = dhᵀ W_1ᵀ        dW_1 = X dhᵀ    dW_2 = readout dZ gᵀ

The way back makes h again and needs no sums over programs, except of dW where a head takes several tiles of channels. X, Z
are [rows, H * E], W_i [H, rows, K], with one row for each place of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.hyper_mix.kernels.hidden_state import factor
from tokmix.ops.hyper_mix.kernels.reassociated import gelu, gelu_and_slope
from tokmix.ops.kernels.rounding import operand, store_rounded


@triton.jit
def span(TABLE, T):
    """This program's sequence, its first row, and how many it has; without a table every row of the batch is one."""
    sequence = tl.program_id(0)
    if TABLE is None:
        begin = sequence * T
        count = T
    else:
        at = TABLE + sequence * 3
        sequence = tl.load(at)
        begin = tl.load(at + 1)
        count = tl.load(at + 2) - begin
    return sequence, begin.to(tl.int64), count


@triton.jit
def tile(P, tokens, cols, count, limit, stride, KIND: tl.constexpr):
    """[N, C] from the rows of a sequence, zero beyond its end and beyond the last column."""
    there = (tokens < count)[:, None] & (cols < limit)[None, :]
    return operand(tl.load(P + tokens[:, None] * stride + cols[None, :], mask=there, other=0.0), KIND)


@triton.jit
def store_tile(P, x, tokens, cols, count, limit, stride):
    there = (tokens < count)[:, None] & (cols < limit)[None, :]
    store_rounded(P + tokens[:, None] * stride + cols[None, :], x, there)


@triton.jit(do_not_specialize=["T"])
def short_forward(
    X, W1, W2, TABLE, SCALE, READOUT, Z, REAL, T, total,
    H: tl.constexpr, E: tl.constexpr, K: tl.constexpr, ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr,
    BN: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W2 None: the same as W1. REAL, if given, is set to 1 for the rows that hold a token."""
    head = tl.program_id(1)
    sequence, begin, count = span(TABLE, T)
    scale, readout = factor(SCALE, sequence, ONE_SCALE), factor(READOUT, sequence, ONE_READOUT)
    tokens = tl.arange(0, BN)
    cols = tl.program_id(2) * BE + tl.arange(0, BE)
    W1 += (head * total + begin) * K
    if W2 is not None:
        W2 += (head * total + begin) * K
    xt = tl.trans(tile(X + begin * (H * E) + head * E, tokens, cols, count, E, H * E, KIND))
    zt = tl.zeros([BE, BN], tl.float32)
    for k in range(0, K, BK):
        units = k + tl.arange(0, BK)
        w1 = tile(W1, tokens, units, count, K, K, KIND)
        w2 = w1
        if W2 is not None:
            w2 = tile(W2, tokens, units, count, K, K, KIND)
        g = gelu(tl.dot(xt, w1, input_precision=PRECISION) * scale, KIND)
        zt = tl.dot(operand(g, KIND), tl.trans(w2), zt, input_precision=PRECISION)
    store_tile(Z + begin * (H * E) + head * E, tl.trans(zt) * readout, tokens, cols, count, E, H * E)
    if REAL is not None:
        tl.store(REAL + begin + tokens, tl.full([BN], 1.0, tl.float32), mask=tokens < count)


@triton.jit(do_not_specialize=["T"])
def short_backward(
    X, DZ, W1, W2, TABLE, SCALE, READOUT, DX, DW1, DW2, T, total,
    H: tl.constexpr, E: tl.constexpr, K: tl.constexpr, ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr,
    BN: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W2 None: the same as W1, and DW1 gets both gradients. DW_i [tiles, H, rows, K]."""
    head = tl.program_id(1)
    sequence, begin, count = span(TABLE, T)
    scale, readout = factor(SCALE, sequence, ONE_SCALE), factor(READOUT, sequence, ONE_READOUT)
    tokens = tl.arange(0, BN)
    cols = tl.program_id(2) * BE + tl.arange(0, BE)
    to = ((tl.program_id(2) * H + head) * total + begin) * K
    DW1 += to
    W1 += (head * total + begin) * K
    if W2 is not None:
        DW2 += to
        W2 += (head * total + begin) * K
    x = tile(X + begin * (H * E) + head * E, tokens, cols, count, E, H * E, KIND)
    dz = tile(DZ + begin * (H * E) + head * E, tokens, cols, count, E, H * E, KIND)
    dxt = tl.zeros([BE, BN], tl.float32)
    for k in range(0, K, BK):
        units = k + tl.arange(0, BK)
        w1 = tile(W1, tokens, units, count, K, K, KIND)
        w2 = w1
        if W2 is not None:
            w2 = tile(W2, tokens, units, count, K, K, KIND)
        g, slope = gelu_and_slope(tl.dot(tl.trans(x), w1, input_precision=PRECISION) * scale, KIND)
        dg = tl.dot(tl.trans(dz), w2, input_precision=PRECISION)
        dh = operand(dg * slope * (scale * readout), KIND)
        g = operand(g * readout, KIND)
        dxt = tl.dot(dh, tl.trans(w1), dxt, input_precision=PRECISION)
        dw1 = tl.dot(x, dh, input_precision=PRECISION)
        if W2 is None:
            dw1 = tl.dot(dz, g, dw1, input_precision=PRECISION)
        else:
            store_tile(DW2, tl.dot(dz, g, input_precision=PRECISION), tokens, units, count, K, K)
        store_tile(DW1, dw1, tokens, units, count, K, K)
    store_tile(DX + begin * (H * E) + head * E, tl.trans(dxt), tokens, cols, count, E, H * E)
