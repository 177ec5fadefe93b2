"""Kernels of HyperMLP and HyperGLU, forward: three passes over the keys for each tile of queries, nothing of size T x T stored.

    pass 1    u = z A1                                                                     [SIDE, r] in float32
    pass 2    h = z (1 + p1) + (s1 u) B1,  ‖h‖²,  y = ReLU(h) A2;  both divided by ‖h‖ at the end
    pass 3    w = a (1 + p2) + (s2 y) B2,  o = w v

Scores are computed anew in each pass, by key; `tiles.turned` rotates them to lags on chip, where the banks' products are
plain ones, and rotates w back for its product with v. HyperGLU has a second set of scores, h', and a = softplus(h') ReLU(h).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops import flops  # noqa: F401  (triton is loaded now, so counters may be told)
from tokmix.ops.hyper_mlp.tiles import (
    controlled,
    lowered,
    lowered_last,
    mixed,
    numbers,
    product,
    put_rows,
    rows,
    scores,
    softplus,
    start,
    turned,
)


@triton.jit
def active(
    q, q2, k, k2, low, low2, UP, UP2, DIAGONAL, DIAGONAL2, c, g, T,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, CAREFUL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """h and ReLU(h), times softplus(h') for HyperGLU, by lag."""
    z = scores(q, k, c, g, SIDE, LAG, VALUES, WIDEN)
    h = mixed(z, low, UP, DIAGONAL, c, g, T, R, RP, SIDE, LAG, CAREFUL, WIDEN)
    a = tl.maximum(h, 0.0)
    if GLU:
        z2 = scores(q2, k2, c, g, SIDE, LAG, VALUES, WIDEN)
        h2 = mixed(z2, low2, UP2, DIAGONAL2, c, g, T, R, RP, SIDE, LAG, CAREFUL, WIDEN)
        a *= softplus(h2, VALUES != "bf16")
    return h, a


@triton.jit(do_not_specialize=["T", "heads"])
def sums(
    Q, K, DOWN1, UP1, DIAGONAL1, CONTROL1, DOWN2, UP2, U, Y, SHRINK,
    T, heads, q_batch, q_head, q_row, k_batch, k_head, k_row, s1_batch, s1_head, s1_row,
    E: tl.constexpr, F: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr,
    EP: tl.constexpr, FP: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr, CAREFUL: tl.constexpr, WIDEN: tl.constexpr,
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
    nothing = tl.zeros([SIDE, SIDE], tl.float32)
    UP12, DIAGONAL12 = UP1, DIAGONAL1
    if UP1 is not None:
        step = T.to(tl.int64) * R1
        far = heads * step
        DOWN1 += head * step
        UP1 += head * step
        DIAGONAL1 += head * T
        UP12, DIAGONAL12 = UP1 + far, DIAGONAL1 + heads * T
        before, before2 = nothing, nothing
        for m in range(c + 1):
            g = c - m
            k = rows(K, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
            z = scores(q, k, c, g, SIDE, LAG, VALUES, WIDEN)
            low = lowered(low, z, before, DOWN1, c, g, T, R1, RP1, SIDE, LAG, CAREFUL, WIDEN)
            before = z
            if GLU:
                k2 = rows(K2, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
                z2 = scores(q2, k2, c, g, SIDE, LAG, VALUES, WIDEN)
                low2 = lowered(low2, z2, before2, DOWN1 + far, c, g, T, R1, RP1, SIDE, LAG, CAREFUL, WIDEN)
                before2 = z2
        low = lowered_last(low, before, DOWN1, c, T, R1, RP1, SIDE, LAG, CAREFUL, WIDEN)
        CONTROL1 = start(CONTROL1, at, heads, s1_batch, s1_head)
        U += ((at // heads) * heads * (1 + GLU) + head) * step
        put_rows(U, low, first, T, R1, R1, R1 == RP1, RP1, SIDE)
        low *= rows(CONTROL1, first, T, s1_row, R1, R1 == RP1, RP1, SIDE).to(tl.float32)
        if GLU:
            low2 = lowered_last(low2, before2, DOWN1 + far, c, T, R1, RP1, SIDE, LAG, CAREFUL, WIDEN)
            put_rows(U + far, low2, first, T, R1, R1, R1 == RP1, RP1, SIDE)
            low2 *= rows(CONTROL1 + heads * s1_head, first, T, s1_row, R1, R1 == RP1, RP1, SIDE).to(tl.float32)
    squares, y, before = tl.zeros([SIDE], tl.float32), tl.zeros([SIDE, RP2], tl.float32), nothing
    if UP2 is not None:
        DOWN2 += head * T.to(tl.int64) * R2
    for m in range(c + 1):
        g = c - m
        k = rows(K, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
        k2 = k
        if GLU:
            k2 = rows(K2, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
        h, a = active(
            q, q2, k, k2, low, low2, UP1, UP12, DIAGONAL1, DIAGONAL12, c, g, T, R1, RP1, SIDE, GLU, LAG, VALUES, CAREFUL, WIDEN
        )  # fmt: skip
        squares += tl.sum(h * h, 1)
        if UP2 is not None:
            y = lowered(y, a, before, DOWN2, c, g, T, R2, RP2, SIDE, LAG, LOOSE, WIDEN)
            before = a
    shrink = (1.0 / tl.maximum(tl.sqrt(squares), 1e-12))[:, None]
    put_rows(SHRINK + at.to(tl.int64) * T, shrink, first, T, 1, 1, True, 1, SIDE)
    if UP2 is not None:
        y = lowered_last(y, before, DOWN2, c, T, R2, RP2, SIDE, LAG, LOOSE, WIDEN)
        put_rows(Y + at.to(tl.int64) * T * R2, y * shrink, first, T, R2, R2, R2 == RP2, RP2, SIDE)


@triton.jit(do_not_specialize=["T", "heads"])
def output(
    Q, K, V, UP1, DIAGONAL1, CONTROL1, UP2, DIAGONAL2, CONTROL2, U, Y, SHRINK, OUT,
    T, heads, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    s1_batch, s1_head, s1_row, s2_batch, s2_head, s2_row, o_batch, o_head, o_row,
    E: tl.constexpr, F: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr,
    EP: tl.constexpr, FP: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr, CAREFUL: tl.constexpr, WIDEN: tl.constexpr,
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
    o = tl.zeros([SIDE, FP], tl.float32)
    for g in range(c + 1):
        k = rows(K, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
        k2 = k
        if GLU:
            k2 = rows(K2, g * SIDE, T, k_row, E, E == EP, EP, SIDE)
        _, a = active(
            q, q2, k, k2, low, low2, UP1, UP12, DIAGONAL1, DIAGONAL12, c, g, T, R1, RP1, SIDE, GLU, LAG, VALUES, CAREFUL, WIDEN
        )  # fmt: skip
        w = mixed(a * shrink, y, UP2, DIAGONAL2, c, g, T, R2, RP2, SIDE, LAG, LOOSE, WIDEN)
        v = rows(V, g * SIDE, T, v_row, F - skip, F % FP == 0, FP, SIDE)
        o += product(turned(w, SIDE, LAG), v, VALUES, WIDEN)
    put_rows(OUT, o, first, T, o_row, F - skip, F % FP == 0, FP, SIDE)
