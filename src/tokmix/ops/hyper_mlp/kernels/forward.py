"""Kernels of HyperMLP and HyperGLU, forward: three passes over the keys for each tile of queries, nothing of size T x T stored.

    pass 1    u = z A1                                                                     [SIDE, r] in float32
    pass 2    h = z (1 + p1) + (s1 u) B1,  ‖h‖²,  y = ReLU(h) A2;  both divided by ‖h‖ at the end
    pass 3    w = a (1 + p2) + (s2 y) B2,  o = w v

Scores are computed anew in each pass, by key; `tiles.walked` makes tiles of lags of them on chip, where the banks' products are
plain ones, and `tiles.by_key` leads back for the product of w with v. HyperGLU has a second set of scores, h', and
a = softplus(h') ReLU(h).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops import flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.hyper_mlp.kernels.tiles import (
    begun,
    by_key,
    controlled,
    lowered,
    mixed,
    numbers,
    product,
    rows,
    softplus_and_slope,
    start,
    store_rows,
    walked,
)


@triton.jit
def active(
    z, z2, low, low2, UP, UP2, DIAGONAL, DIAGONAL2, c, m, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr,
    VALUES: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """h and ReLU(h), times softplus(h') for HyperGLU."""
    h = mixed(z, low, UP, DIAGONAL, c, m, T, R, RP, SIDE, CAREFUL)
    a = tl.maximum(h, 0.0)
    if GLU:
        h2 = mixed(z2, low2, UP2, DIAGONAL2, c, m, T, R, RP, SIDE, CAREFUL)
        scale, _ = softplus_and_slope(h2, VALUES != "bf16")
        a *= scale
    return h, a


@triton.jit(do_not_specialize=["T", "heads"])
def sums(
    Q, K, DOWN1, UP1, DIAGONAL1, CONTROL1, DOWN2, UP2, U, Y, SHRINK,
    T, heads, q_batch, q_head, q_row, k_batch, k_head, k_row, s1_batch, s1_head, s1_row,
    E: tl.constexpr, F: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr,
    EP: tl.constexpr, FP: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Passes 1 and 2 for one tile of queries of one head: u, y and SHRINK = 1 / ‖h‖."""
    c = tl.cdiv(T, SIDE) - 1 - tl.program_id(0)  # the longest rows first
    at = tl.program_id(1)
    head, first = at % heads, c * SIDE
    Q, K = start(Q, at, heads, q_batch, q_head), start(K, at, heads, k_batch, k_head)
    K2 = K + heads * k_head
    q = rows(Q, first, T, q_row, E, E == EP, EP, SIDE)
    q2 = q
    if GLU:
        q2 = rows(Q + heads * q_head, first, T, q_row, E, E == EP, EP, SIDE)
    low, low2 = tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP1], tl.float32)
    UP12, DIAGONAL12 = UP1, DIAGONAL1
    if UP1 is not None:
        step = T.to(tl.int64) * R1
        far = heads * step
        DOWN1 += head * step
        UP1 += head * step
        DIAGONAL1 += head * T
        UP12, DIAGONAL12 = UP1 + far, DIAGONAL1 + heads * T
        newer, newer2 = begun(q, q2, K, K2, c, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
        for m in range(c + 1):
            z, z2, newer, newer2 = walked(newer, newer2, q, q2, K, K2, c, m, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
            low += lowered(z, DOWN1, m, T, R1, RP1, SIDE, CAREFUL)
            if GLU:
                low2 += lowered(z2, DOWN1 + far, m, T, R1, RP1, SIDE, CAREFUL)
        CONTROL1 = start(CONTROL1, at, heads, s1_batch, s1_head)
        U += ((at // heads) * heads * (1 + GLU) + head) * step
        store_rows(U, low, first, T, R1, R1, R1 == RP1, RP1, SIDE)
        low *= rows(CONTROL1, first, T, s1_row, R1, R1 == RP1, RP1, SIDE).to(tl.float32)
        if GLU:
            store_rows(U + far, low2, first, T, R1, R1, R1 == RP1, RP1, SIDE)
            low2 *= rows(CONTROL1 + heads * s1_head, first, T, s1_row, R1, R1 == RP1, RP1, SIDE).to(tl.float32)
    squares, y = tl.zeros([SIDE], tl.float32), tl.zeros([SIDE, RP2], tl.float32)
    if UP2 is not None:
        DOWN2 += head * T.to(tl.int64) * R2
    newer, newer2 = begun(q, q2, K, K2, c, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
    for m in range(c + 1):
        z, z2, newer, newer2 = walked(newer, newer2, q, q2, K, K2, c, m, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
        h, a = active(z, z2, low, low2, UP1, UP12, DIAGONAL1, DIAGONAL12, c, m, T, R1, RP1, SIDE, GLU, VALUES, CAREFUL)
        squares += tl.sum(h * h, 1)
        if UP2 is not None:
            y += lowered(a, DOWN2, m, T, R2, RP2, SIDE, LOOSE)
    shrink = (1.0 / tl.maximum(tl.sqrt(squares), 1e-12))[:, None]
    store_rows(SHRINK + at.to(tl.int64) * T, shrink, first, T, 1, 1, True, 1, SIDE)
    if UP2 is not None:
        store_rows(Y + at.to(tl.int64) * T * R2, y * shrink, first, T, R2, R2, R2 == RP2, RP2, SIDE)


@triton.jit(do_not_specialize=["T", "heads"])
def output(
    Q, K, V, UP1, DIAGONAL1, CONTROL1, UP2, DIAGONAL2, CONTROL2, U, Y, SHRINK, OUT,
    T, heads, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    s1_batch, s1_head, s1_row, s2_batch, s2_head, s2_row, o_batch, o_head, o_row,
    E: tl.constexpr, F: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr,
    EP: tl.constexpr, FP: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Pass 3: FP columns of the output."""
    c = tl.cdiv(T, SIDE) - 1 - tl.program_id(0)
    at, skip = tl.program_id(1), tl.program_id(2) * FP
    head, first = at % heads, c * SIDE
    flat = at.to(tl.int64) * T
    Q, K = start(Q, at, heads, q_batch, q_head), start(K, at, heads, k_batch, k_head)
    V, OUT = start(V, at, heads, v_batch, v_head) + skip, start(OUT, at, heads, o_batch, o_head) + skip
    K2 = K + heads * k_head
    q = rows(Q, first, T, q_row, E, E == EP, EP, SIDE)
    q2, low, low2 = q, tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP1], tl.float32)
    if GLU:
        q2 = rows(Q + heads * q_head, first, T, q_row, E, E == EP, EP, SIDE)
    UP12, DIAGONAL12 = UP1, DIAGONAL1
    if UP1 is not None:
        step = T.to(tl.int64) * R1
        far = heads * step
        UP1 += head * step
        DIAGONAL1 += head * T
        UP12, DIAGONAL12 = UP1 + far, DIAGONAL1 + heads * T
        CONTROL1 = start(CONTROL1, at, heads, s1_batch, s1_head)
        U += ((at // heads) * heads * (1 + GLU) + head) * step
        low = controlled(U, CONTROL1, first, T, s1_row, R1, RP1, SIDE)
        if GLU:
            low2 = controlled(U + far, CONTROL1 + heads * s1_head, first, T, s1_row, R1, RP1, SIDE)
    y = tl.zeros([SIDE, RP2], tl.float32)
    if UP2 is not None:
        UP2 += head * T.to(tl.int64) * R2
        DIAGONAL2 += head * T
        y = controlled(Y + flat * R2, start(CONTROL2, at, heads, s2_batch, s2_head), first, T, s2_row, R2, RP2, SIDE)
    shrink = numbers(SHRINK + flat, first, T, SIDE)
    newer, newer2 = begun(q, q2, K, K2, c, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
    o, before = tl.zeros([SIDE, FP], tl.float32), tl.zeros([SIDE, SIDE], tl.float32)
    for m in range(c + 1):
        z, z2, newer, newer2 = walked(newer, newer2, q, q2, K, K2, c, m, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
        _, a = active(z, z2, low, low2, UP1, UP12, DIAGONAL1, DIAGONAL12, c, m, T, R1, RP1, SIDE, GLU, VALUES, CAREFUL)
        w = mixed(a * shrink, y, UP2, DIAGONAL2, c, m, T, R2, RP2, SIDE, LOOSE)
        v = rows(V, (c - m if LAG else m) * SIDE, T, v_row, F - skip, F % FP == 0, FP, SIDE)
        o += product(by_key(w, before, SIDE, LAG), v, VALUES)
        before = w
    store_rows(OUT, o, first, T, o_row, F - skip, F % FP == 0, FP, SIDE)
