"""Kernels between HyperMixing's passes over the tokens: they process a sequence's sums, one program per sequence and head.

    S = scale (V_1ᵀ M + c_1 m)    G = readout GELU(S)    Q = V_2 G,  r = c_2 G
    dG = V_2ᵀ dQ + c_2 dr         dS = scale readout dG ⊙ GELU'(S)    dM = V_1 dS,  dm = c_1 dS

S is made again on the way back. [M; m], [Q; r] and their gradients are [H, rows, sequences, E], as in `triton`; S has k
rows, which are walked over.

[M; m] is in float32. What all tokens have in common grows with their number, and with it what rounding M would cost: in long
sequences more than the width of GELU's bend, so that slopes would be 1 for 0. The textbook rounds each token's weights
on its own, which averages out. So M is two factors of a product: what KIND can hold of it, and the rest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.hyper_mix.kernels.reassociated import block, gelu, gelu_and_slope
from tokmix.ops.kernels.rounding import operand, store_rounded


@triton.jit
def outer(V, C, head, cols, units, E: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr):
    """Some columns of a head's V [H, E, K], and of its c [H, K] as [BK, 1] in float32, zero if there is none."""
    there = (cols < E)[:, None] & (units < K)[None, :]
    v = operand(tl.load(V + (head * E + cols)[:, None] * K + units[None, :], mask=there, other=0.0), KIND)
    if C is None:
        c = tl.zeros([units.shape[0], 1], tl.float32)
    else:
        c = tl.load(C + head * K + units, mask=units < K, other=0.0).to(tl.float32)[:, None]
    return v, c


@triton.jit
def factor(SCALE, sequence, SINGLE: tl.constexpr):
    """A sequence's factor from SCALE [S], or the common one from [1]; 1 without SCALE."""
    if SCALE is None:
        value = 1.0
    elif SINGLE:
        value = tl.load(SCALE)
    else:
        value = tl.load(SCALE + sequence)
    return value


@triton.jit
def sums(M, sequence, sequences, head, cols, E: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr):
    """A sequence's and head's M as two factors, and m."""
    m, last = block(M, sequence, sequences, head, cols, E, ROWS, tl.float32)
    near = operand(m, KIND)
    return near, operand(m - near.to(tl.float32), KIND), last


@triton.jit
def state(v, c, near, far, last, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """Some rows of V_1ᵀ M + c_1 m."""
    s = tl.dot(tl.trans(v), near, input_precision=PRECISION)
    if tl.float32 != KIND:
        s = tl.dot(tl.trans(v), far, s, input_precision=PRECISION)
    return s + c * last


@triton.jit
def store_rows(P, matrix, last, sequence, sequences, head, cols, E: tl.constexpr, ROWS: tl.constexpr):
    """A sequence's and head's matrix into [H, ROWS, S, E], and its last row where ROWS is E + 1."""
    at = P + (sequence.to(tl.int64) + head * ROWS * sequences) * E + cols[None, :]
    step = sequences * E
    there = (cols < E)[:, None] & (cols < E)[None, :]
    store_rounded(at + cols[:, None].to(tl.int64) * step, matrix, there)
    if ROWS > E:
        store_rounded(at + tl.cast(E, tl.int64) * step, last, (cols < E)[None, :])


@triton.jit
def middle_forward(
    M, V1, C1, V2, C2, SCALE, READOUT, Q, sequences, ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, EP)
    near, far, last = sums(M, sequence, sequences, head, cols, E, ROWS, KIND)
    scale, readout = factor(SCALE, sequence, ONE_SCALE), factor(READOUT, sequence, ONE_READOUT)
    q = tl.zeros([EP, EP], tl.float32)
    r = tl.zeros([1, EP], tl.float32)
    for k in range(0, K, BK):
        units = k + tl.arange(0, BK)
        v1, c1 = outer(V1, C1, head, cols, units, E, K, KIND)
        v2, c2 = outer(V2, C2, head, cols, units, E, K, KIND)
        s = state(v1, c1, near, far, last, KIND, PRECISION) * scale
        g = gelu(s, KIND) * readout
        q = tl.dot(v2, operand(g, KIND), q, input_precision=PRECISION)
        r += tl.sum(c2 * g, 0, keep_dims=True)
    store_rows(Q, q, r, sequence, sequences, head, cols, E, ROWS)


@triton.jit
def middle_backward(
    DQ, M, V1, C1, V2, C2, SCALE, READOUT, DM, DS, G, sequences,
    ONE_SCALE: tl.constexpr, ONE_READOUT: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Also writes DS and G [H, K, S, E], for the gradients of V and c."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, EP)
    near, far, last = sums(M, sequence, sequences, head, cols, E, ROWS, KIND)
    dq, dr = block(DQ, sequence, sequences, head, cols, E, ROWS, KIND)
    scale, readout = factor(SCALE, sequence, ONE_SCALE), factor(READOUT, sequence, ONE_READOUT)
    dm = tl.zeros([EP, EP], tl.float32)
    dlast = tl.zeros([1, EP], tl.float32)
    for k in range(0, K, BK):
        units = k + tl.arange(0, BK)
        v1, c1 = outer(V1, C1, head, cols, units, E, K, KIND)
        v2, c2 = outer(V2, C2, head, cols, units, E, K, KIND)
        s = state(v1, c1, near, far, last, KIND, PRECISION) * scale
        g, slope = gelu_and_slope(s, KIND)
        dg = tl.dot(tl.trans(v2), dq, input_precision=PRECISION) + c2 * dr
        ds = dg * slope * (scale * readout)
        at = ((head * K + units)[:, None].to(tl.int64) * sequences + sequence) * E + cols[None, :]
        there = (units < K)[:, None] & (cols < E)[None, :]
        store_rounded(G + at, g * readout, there)
        store_rounded(DS + at, ds, there)
        dm = tl.dot(v1, operand(ds, KIND), dm, input_precision=PRECISION)
        dlast += tl.sum(c1 * ds, 0, keep_dims=True)
    store_rows(DM, dm, dlast, sequence, sequences, head, cols, E, ROWS)
