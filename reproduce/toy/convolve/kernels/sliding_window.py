"""Kernels of a short convolution along the tokens, channels last.

What a token sees, itself and its neighbours with all their channels, lies in one stretch of memory: window[t, j] with j counting
K tokens of C channels. So a convolution is a matrix product that reads its left side with overlaps, and nothing is copied.

    y[t] = b + window(x)[t] W            W [K C, D], and where asked for max(y, 0)
    dx[t] = window(dz)[t] W'             W' the taps mirrored and transposed; dz = dy, zero where the output was not above zero
    dW = Σ_t window(x)[t]ᵀ dz[t],  db = Σ_t dz[t]

Rows are the tokens of all sequences one after the other; what stands outside of a sequence counts as zero.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def window(X, GATE, rows, j, total, T, C: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr):
    """[rows, j]. GATED: zero where GATE, of x's shape, is not above zero."""
    place = (rows % T)[:, None] + (j // C - K // 2)[None, :]
    there = (rows < total)[:, None] & (j < K * C)[None, :] & (place >= 0) & (place < T)
    at = (rows - K // 2)[:, None] * C + j[None, :]
    x = tl.load(X + at, mask=there, other=0.0)
    if GATED:
        x = tl.where(tl.load(GATE + at, mask=there, other=0.0) > 0, x, 0.0)
    return x


@triton.jit
def slide(
    X, GATE, WEIGHT, BIAS, Y, total, T,
    C: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, BR: tl.constexpr, K: tl.constexpr,
    BACK: tl.constexpr, GATED: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [rows, C] -> y [rows, D]. BACK: by mirrored and transposed taps, WEIGHT being [K, D, C] then, and without a bias."""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    y = tl.zeros([BR, BD], tl.float32)
    for start in range(0, K * C, BJ):
        j = start + tl.arange(0, BJ)
        if BACK:
            at = ((K - 1 - j // C)[:, None] * D + d[None, :]) * C + (j % C)[:, None]
        else:
            at = j[:, None] * D + d[None, :]
        weight = tl.load(WEIGHT + at, mask=(j < K * C)[:, None] & (d < D)[None, :], other=0.0)
        y = tl.dot(window(X, GATE, rows, j, total, T, C, K, GATED), weight, y, input_precision=PRECISION)
    if not BACK:
        y += tl.load(BIAS + d, mask=d < D, other=0.0)[None, :]
    if RELU:
        y = tl.maximum(y, 0.0)
    tl.store(Y + rows[:, None] * D + d[None, :], y, mask=(rows < total)[:, None] & (d < D)[None, :])


@triton.jit
def weigh(
    X, DY, GATE, PARTS, total, T, piece,
    C: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, BR: tl.constexpr, K: tl.constexpr,
    GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `piece` rows give to BJ rows of dW [K C, D], and to db behind it: [pieces, K C D + D]."""
    j, d = tl.program_id(1) * BJ + tl.arange(0, BJ), tl.arange(0, BD)
    dw = tl.zeros([BJ, BD], tl.float32)
    db = tl.zeros([BD], tl.float32)
    first = tl.program_id(0) * piece
    for start in range(first, first + piece, BR):
        rows = start + tl.arange(0, BR)
        dz = window(DY, GATE, rows, d, total, T, D, 1, GATED)
        dw = tl.dot(tl.trans(window(X, X, rows, j, total, T, C, K, False)), dz, dw, input_precision=PRECISION)
        db += tl.sum(dz, 0)
    part = PARTS + tl.program_id(0) * (K * C * D + D)
    tl.store(part + j[:, None] * D + d[None, :], dw, mask=(j < K * C)[:, None] & (d < D)[None, :])
    if tl.program_id(1) == 0:
        tl.store(part + K * C * D + d, db, mask=d < D)


@triton.jit
def add(PARTS, OUT, pieces, size, BLOCK: tl.constexpr):
    """[pieces, size] -> [size]"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for piece in range(pieces):
        total += tl.load(PARTS + piece * size + at, mask=at < size, other=0.0)
    tl.store(OUT + at, total, mask=at < size)
