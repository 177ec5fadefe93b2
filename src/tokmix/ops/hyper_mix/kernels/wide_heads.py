"""Kernels between the large products of HyperMixing with wide heads: everything that is not a product, in few passes.

    GELU with its bias, and its slope with the sums of the bias's gradient
    the sum of a sequence's tokens
    LayerNorm of z + r, where r is one vector a sequence, and its slope with the sums over tokens
    the hidden state between its two products: bias, scale, GELU and readout, forward and backward

Token matrices are [H, B * T, n], per-sequence matrices [H, B * e, n] with a row for each channel (`wide`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.hyper_mix.kernels.reassociated import gelu, gelu_and_slope
from tokmix.ops.kernels.rounding import nearest, store_rounded
from tokmix.ops.shift_mix.kernels.tiles import normalised


@triton.jit
def gelu_forward(P, BIAS, OUT, total, WIDTH: tl.constexpr, KIND: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """GELU(p + b): P, OUT [H, total, WIDTH], BIAS [H, WIDTH]."""
    head = tl.program_id(2)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    there = (rows < total)[:, None] & (cols < WIDTH)[None, :]
    at = (head.to(tl.int64) * total + rows)[:, None] * WIDTH + cols[None, :]
    p = tl.load(P + at, mask=there, other=0.0).to(tl.float32)
    if BIAS is not None:
        p += tl.load(BIAS + head * WIDTH + cols, mask=cols < WIDTH, other=0.0).to(tl.float32)[None, :]
    store_rounded(OUT + at, gelu(p, KIND), there)


@triton.jit(do_not_specialize=["turns"])
def gelu_backward(
    P, DH, BIAS, DP, SUMS, total, turns, INNER: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dp = dh ⊙ GELU'(p + b) of one net: DH [H, total, INNER], P and DP its columns of [H, total, WIDTH], BIAS its
    columns of [H, WIDTH]. Of a single net DP may be DH. SUMS [programs, H, INNER]: sums of dp."""
    head = tl.program_id(2)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < INNER)[None, :]
    bias = tl.zeros([1, BD], tl.float32)
    if BIAS is not None:
        bias = tl.load(BIAS + head * WIDTH + cols, mask=cols < INNER, other=0.0).to(tl.float32)[None, :]
    sums = tl.zeros([BR, BD], tl.float32)
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = (turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR)
        there = (rows < total)[:, None] & wide
        row = (head.to(tl.int64) * total + rows)[:, None]
        p = tl.load(P + row * WIDTH + cols[None, :], mask=there, other=0.0).to(tl.float32) + bias
        dh = tl.load(DH + row * INNER + cols[None, :], mask=there, other=0.0).to(tl.float32)
        _, slope = gelu_and_slope(p, KIND)
        dp = dh * slope
        sums += dp
        store_rounded(DP + row * WIDTH + cols[None, :], dp, there)
    to = (tl.program_id(0) * tl.num_programs(2) + head) * INNER + cols
    tl.store(SUMS + to, tl.sum(sums, 0), mask=cols < INNER)


@triton.jit
def two_factors(EXACT, BOTH, total, WIDTH, BR: tl.constexpr, BD: tl.constexpr):
    """EXACT [total, WIDTH] -> BOTH [total, 2 WIDTH]: each number rounded, and its rounding error."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    there = (rows < total) & (cols < WIDTH)[None, :]
    exact = tl.load(EXACT + rows.to(tl.int64) * WIDTH + cols[None, :], mask=there, other=0.0)
    near = nearest(exact, BOTH.dtype.element_ty).to(tl.float32)
    to = BOTH + rows.to(tl.int64) * 2 * WIDTH + cols[None, :]
    store_rounded(to, near, there)
    store_rounded(to + WIDTH, exact - near, there)


@triton.jit
def sum_tokens(X, OUT, T, size, batch_stride, row_stride, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Sums of pieces of `size` rows of X [B, T, D]: OUT [B, pieces, D]."""
    b, piece = tl.program_id(2), tl.program_id(0)
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    wide = (cols < D)[None, :]
    end = tl.minimum((piece + 1) * size, T)
    X += b.to(tl.int64) * batch_stride
    total = tl.zeros([BR, BD], tl.float32)
    for i in range(piece * size, end, BR):
        rows = (i + tl.arange(0, BR))[:, None]
        total += tl.load(X + rows.to(tl.int64) * row_stride + cols[None, :], mask=(rows < end) & wide, other=0.0).to(tl.float32)
    to = (b * tl.num_programs(0) + piece).to(tl.int64) * D + cols
    tl.store(OUT + to, tl.sum(total, 0), mask=cols < D)


@triton.jit
def spread(VECTOR, OUT, T, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Copy a sequence's vector to all of its rows: VECTOR [B, D], OUT [B, T, D]."""
    b = tl.program_id(2)
    rows = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    cols = tl.program_id(1) * BD + tl.arange(0, BD)
    values = tl.load(VECTOR + b * D + cols, mask=cols < D, other=0.0)[None, :] + tl.zeros([BR, BD], tl.float32)
    at = (b.to(tl.int64) * T + rows) * D + cols[None, :]
    store_rounded(OUT + at, values, (rows < T) & (cols < D)[None, :])


@triton.jit
def norm_forward(Z, R, GAIN, BIAS, Y, MEAN, RSTD, T, eps, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """LayerNorm of z + r. R [B, D] or none."""
    b = tl.program_id(1)
    rows = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    there = (rows < T) & wide
    row = b.to(tl.int64) * T + rows
    z = tl.load(Z + row * D + cols[None, :], mask=there, other=0.0).to(tl.float32)
    if R is not None:
        z += tl.load(R + b * D + cols, mask=cols < D, other=0.0)[None, :]
    n, mean, rstd = normalised(z, wide, D, eps)
    gain = tl.load(GAIN + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(BIAS + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    store_rounded(Y + row * D + cols[None, :], n * gain + bias, there)
    tl.store(MEAN + row, mean, mask=rows < T)
    tl.store(RSTD + row, rstd, mask=rows < T)


@triton.jit(do_not_specialize=["turns"])
def norm_backward(
    DY, Z, R, GAIN, MEAN, RSTD, DZ, SUMS, T, dy_batch, dy_row, turns,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """SUMS [3, B, pieces, D]: of dy ⊙ n, of dy and of dz over the rows of each piece of a sequence."""
    b = tl.program_id(1)
    cols = tl.arange(0, BD)
    wide = (cols < D)[None, :]
    gain = tl.load(GAIN + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
    r = tl.zeros([1, BD], tl.float32)
    if R is not None:
        r = tl.load(R + b * D + cols, mask=cols < D, other=0.0)[None, :]
    dgain = tl.zeros([BR, BD], tl.float32)
    dbias = tl.zeros([BR, BD], tl.float32)
    dr = tl.zeros([BR, BD], tl.float32)
    DY += b.to(tl.int64) * dy_batch
    for turn in tl.range(0, turns, num_stages=STAGES):
        rows = ((turn * tl.num_programs(0) + tl.program_id(0)) * BR + tl.arange(0, BR))[:, None]
        inside = rows < T
        row = b.to(tl.int64) * T + rows
        rstd = tl.load(RSTD + row, mask=inside, other=0.0)
        mean = tl.load(MEAN + row, mask=inside, other=0.0)
        z = tl.load(Z + row * D + cols[None, :], mask=inside & wide, other=0.0).to(tl.float32)
        dy = tl.load(DY + rows.to(tl.int64) * dy_row + cols[None, :], mask=inside & wide, other=0.0).to(tl.float32)
        n = (z + r - mean) * rstd
        if BD != D:
            n = tl.where(wide, n, 0.0)
        g = dy * gain
        dz = (g - tl.sum(g, 1, keep_dims=True) / D - n * (tl.sum(g * n, 1, keep_dims=True) / D)) * rstd
        dgain += dy * n
        dbias += dy
        dr += dz
        store_rounded(DZ + row * D + cols[None, :], dz, inside & wide)
    pieces = tl.num_programs(0)
    to = SUMS + (b * pieces + tl.program_id(0)).to(tl.int64) * D + cols
    step = tl.num_programs(1).to(tl.int64) * pieces * D
    tl.store(to, tl.sum(dgain, 0), mask=cols < D)
    tl.store(to + step, tl.sum(dbias, 0), mask=cols < D)
    tl.store(to + 2 * step, tl.sum(dr, 0), mask=cols < D)


@triton.jit
def per_row(VECTOR, sequence, channel, there, H: tl.constexpr, E: tl.constexpr):
    """For each row of a per-sequence matrix its number from [B, H * E] in float32, [R, 1]; zero without a vector."""
    values = tl.zeros(channel.shape, tl.float32)
    if VECTOR is not None:
        values = tl.load(VECTOR + sequence * (H * E) + channel, mask=there, other=0.0)
    return values[:, None]


@triton.jit
def factor(SCALE, sequence, there, SINGLE: tl.constexpr):
    """The factor of each row's sequence from SCALE [B], or the common one from [1]; 1 without SCALE."""
    values = tl.full(sequence.shape, 1.0, tl.float32)
    if SCALE is not None:
        values = tl.load(SCALE + (sequence * 0 if SINGLE else sequence), mask=there, other=0.0)
    return values[:, None]


@triton.jit
def head_vector(VECTOR, head, cols, K: tl.constexpr):
    """A head's part of [H, K] in float32, [1, C]; zero without a vector."""
    values = tl.zeros(cols.shape, tl.float32)
    if VECTOR is not None:
        values = tl.load(VECTOR + head * K + cols, mask=cols < K, other=0.0).to(tl.float32)
    return values[None, :]


@triton.jit
def middle_forward(
    S, M, C1, C2, SCALE, READOUT, G, R, total, H: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr, KIND: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """S [H, total, K] becomes scale (s + m c1ᵀ), G readout GELU(s), and R [B, H * E] is G c2."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = rows < total
    sequence, channel = rows // E, head * E + rows % E
    m = per_row(M, sequence, channel, inside, H, E)
    scale = factor(SCALE, sequence, inside, ONE_SCALE)
    readout = factor(READOUT, sequence, inside, ONE_READOUT)
    r = tl.zeros([BR, BK], tl.float32)
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        there = inside[:, None] & (cols < K)[None, :]
        at = (head.to(tl.int64) * total + rows)[:, None] * K + cols[None, :]
        s = (tl.load(S + at, mask=there, other=0.0).to(tl.float32) + m * head_vector(C1, head, cols, K)) * scale
        g = gelu(s, KIND) * readout
        r += g * head_vector(C2, head, cols, K)
        store_rounded(S + at, s, there)
        store_rounded(G + at, g, there)
    if R is not None:
        tl.store(R + sequence * (H * E) + channel, tl.sum(r, 1), mask=inside)


@triton.jit
def middle_backward(
    DG, S, M, DR, C1, C2, SCALE, READOUT, G, DM, SUMS, total, H: tl.constexpr, E: tl.constexpr, K: tl.constexpr,
    ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr, KIND: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """DG [H, total, K], without what comes by r, becomes dS; G is made again. DM [B, H * E] is dS c1; SUMS
    [2, programs, H, K]: sums of dS ⊙ m and of G ⊙ dr over the rows of a program, the gradients of c1 and c2."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = rows < total
    sequence, channel = rows // E, head * E + rows % E
    m = per_row(M, sequence, channel, inside, H, E)
    dr = per_row(DR, sequence, channel, inside, H, E)
    scale = factor(SCALE, sequence, inside, ONE_SCALE)
    readout = factor(READOUT, sequence, inside, ONE_READOUT)
    dm = tl.zeros([BR, BK], tl.float32)
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        there = inside[:, None] & (cols < K)[None, :]
        at = (head.to(tl.int64) * total + rows)[:, None] * K + cols[None, :]
        g, slope = gelu_and_slope(tl.load(S + at, mask=there, other=0.0).to(tl.float32), KIND)
        dg = tl.load(DG + at, mask=there, other=0.0).to(tl.float32) + dr * head_vector(C2, head, cols, K)
        g *= readout
        ds = dg * slope * (readout * scale)
        dm += ds * head_vector(C1, head, cols, K)
        store_rounded(DG + at, ds, there)
        store_rounded(G + at, g, there)
        if SUMS is not None:
            to = (tl.program_id(0) * H + head).to(tl.int64) * K + cols
            tl.store(SUMS + to, tl.sum(ds * m, 0), mask=cols < K)
            tl.store(SUMS + tl.num_programs(0).to(tl.int64) * (H * K) + to, tl.sum(g * dr, 0), mask=cols < K)
    if DM is not None:
        tl.store(DM + sequence * (H * E) + channel, tl.sum(dm, 1), mask=inside)
