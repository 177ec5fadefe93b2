"""Kernels of HyperMLP and HyperGLU, backward: from the output's gradient to that of the scores.

    weights    dw = do vᵀ,  G = dw B2ᵀ
    scores     da = dw (1 + p2) + (s2 G) A2ᵀ,   dh = (ReLU'(h) da - (do · o) h / ‖h‖) / ‖h‖,   E = dh B1ᵀ
    back       dz = dh (1 + p1) + (s1 E) A1ᵀ,   w = a (1 + p2) + (s2 y) B2,   dq = dz k

The norm's part of dh needs a sum over all keys, and Σ a da = do · o. Scores are computed anew from what the forward pass
stored for each query: u, y and 1 / ‖h‖.

A launch covers a stripe of query tiles, first .. first + stripe, of some sequences. Each program has one tile of queries and
up to RUN tiles of its lags; sums over keys go into one part for each run, which `sum_runs` adds up. Between launches the
stripe's tiles of dw, z, dh and a stand in scratch memory, [sequences H, stripe, tiles, SIDE, SIDE], by lag; `keys_backward` puts dz
and w by key in the place of z and dw, which `backward_sums` has read before. Not in that of dh and a: what a run's first tile of
keys needs of the run before it would be gone.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
    store_tile,
    tile_at,
    tile_of,
    turned,
    walked,
)


@triton.jit(do_not_specialize=["T", "heads"])
def deltas(
    DO,
    OUT,
    SHRINK,
    DELTA,
    T,
    heads,
    do_batch,
    do_head,
    do_row,
    o_batch,
    o_head,
    o_row,
    F: tl.constexpr,
    FP: tl.constexpr,
    SIDE: tl.constexpr,
):
    """do · o of each query."""
    at, first = tl.program_id(1), tl.program_id(0) * SIDE
    DO, OUT = start(DO, at, heads, do_batch, do_head), start(OUT, at, heads, o_batch, o_head)
    delta = tl.zeros([SIDE], tl.float32)
    for i in range(0, F, FP):
        do = rows(DO + i, first, T, do_row, F - i, F % FP == 0, FP, SIDE).to(tl.float32)
        delta += tl.sum(do * rows(OUT + i, first, T, o_row, F - i, F % FP == 0, FP, SIDE).to(tl.float32), 1)
    shrink = numbers(SHRINK + at.to(tl.int64) * T, first, T, SIDE)
    delta = tl.where(shrink < 0.99e12, delta[:, None], 0.0)  # a norm that was clamped passes no gradient
    store_rows(DELTA + at.to(tl.int64) * T, delta, first, T, 1, 1, True, 1, SIDE)


@triton.jit
def weights_grad(
    do, DO, V, c, tile, T, do_row, v_row, F: tl.constexpr, FP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of weights, do vᵀ, turned. do: the first FP columns; the others are loaded here."""
    dw = product(do, tl.trans(rows(V, tile * SIDE, T, v_row, F, F >= FP, FP, SIDE)), VALUES)
    for j in tl.static_range(1, (F + FP - 1) // FP):
        more = rows(DO + j * FP, c * SIDE, T, do_row, F - j * FP, F - j * FP >= FP, FP, SIDE)
        dw += product(more, tl.trans(rows(V + j * FP, tile * SIDE, T, v_row, F - j * FP, F - j * FP >= FP, FP, SIDE)), VALUES)
    return turned(dw, SIDE, LAG)


@triton.jit(do_not_specialize=["T", "heads", "first", "stripe", "runs", "tiles"])
def weights(
    DO, V, UP2, DW, PART, T, heads, first, stripe, runs, tiles, do_batch, do_head, do_row, v_batch, v_head, v_row,
    F: tl.constexpr, FP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, RUN: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr,
):  # fmt: skip
    """dw into scratch, and this run's part of G."""
    mine, run, at = tl.program_id(0) // runs, tl.program_id(0) % runs, tl.program_id(1)
    c, begin = first + mine, run * RUN
    DO, V = start(DO, at, heads, do_batch, do_head), start(V, at, heads, v_batch, v_head)
    DW += ((at * stripe + mine) * tiles).to(tl.int64) * (SIDE * SIDE)
    do = rows(DO, c * SIDE, T, do_row, F, F >= FP, FP, SIDE)
    low = tl.zeros([SIDE, RP], tl.float32)
    if UP2 is not None:
        UP2 += (at % heads) * T.to(tl.int64) * R
    newer = weights_grad(do, DO, V, c, c - begin, T, do_row, v_row, F, FP, SIDE, LAG, VALUES)
    for m in range(begin, tl.minimum(begin + RUN, c + 1)):
        older = weights_grad(do, DO, V, c, c - m - 1 if LAG else m, T, do_row, v_row, F, FP, SIDE, LAG, VALUES)
        dw = tile_of(newer, older, c, m, SIDE, LAG)
        newer = older
        store_tile(tile_at(DW, m, SIDE), dw)
        if UP2 is not None:
            low += lowered(dw, UP2, m, T, R, RP, SIDE, LOOSE)
    if UP2 is not None:
        PART += ((run * tl.num_programs(1) + at) * stripe + mine).to(tl.int64) * (SIDE * R)
        store_rows(PART, low, 0, SIDE, R, R, R == RP, RP, SIDE)


# long: the optional terms share one tile in registers
@triton.jit(do_not_specialize=["T", "heads", "first", "stripe", "runs", "tiles"])
def scores_backward(
    Q, K, UP1, DIAGONAL1, CONTROL1, DOWN2, DIAGONAL2, U, GS, SHRINK, DELTA, DW, Z, Z2, DH, DH2, A, PART,
    T, heads, first, stripe, runs, tiles, q_batch, q_head, q_row, k_batch, k_head, k_row, s1_batch, s1_head, s1_row,
    E: tl.constexpr, EP: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr,
    SIDE: tl.constexpr, RUN: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr, LOOSE: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """z, dh and a into scratch, and this run's part of E."""
    mine, run, at = tl.program_id(0) // runs, tl.program_id(0) % runs, tl.program_id(1)
    c, begin, head = first + mine, run * RUN, at % heads
    Q, K = start(Q, at, heads, q_batch, q_head), start(K, at, heads, k_batch, k_head)
    K2 = K + heads * k_head
    flat, place = at.to(tl.int64) * T, (at * stripe + mine).to(tl.int64)
    scored = (at // heads) * heads * (1 + GLU) + head  # the gate's head among all heads of scores
    far = heads * T.to(tl.int64) * R1
    tile = place * tiles * (SIDE * SIDE)
    q = rows(Q, c * SIDE, T, q_row, E, E == EP, EP, SIDE)
    q2, low, low2, gs = q, tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP2], tl.float32)
    if GLU:
        q2 = rows(Q + heads * q_head, c * SIDE, T, q_row, E, E == EP, EP, SIDE)
    UP12, DIAGONAL12 = UP1, DIAGONAL1
    if UP1 is not None:
        UP1 += head * T.to(tl.int64) * R1
        DIAGONAL1 += head * T
        UP12, DIAGONAL12 = UP1 + far, DIAGONAL1 + heads * T
        CONTROL1 = start(CONTROL1, at, heads, s1_batch, s1_head)
        U += scored * T.to(tl.int64) * R1
        low = controlled(U, CONTROL1, c * SIDE, T, s1_row, R1, RP1, SIDE)
        if GLU:
            low2 = controlled(U + far, CONTROL1 + heads * s1_head, c * SIDE, T, s1_row, R1, RP1, SIDE)
    if DOWN2 is not None:
        DOWN2 += head * T.to(tl.int64) * R2
        DIAGONAL2 += head * T
        gs = rows(GS + place * (SIDE * R2), 0, SIDE, R2, R2, R2 == RP2, RP2, SIDE)
    shrink, delta = numbers(SHRINK + flat, c * SIDE, T, SIDE), numbers(DELTA + flat, c * SIDE, T, SIDE)
    # The first query has one key, whose share of the norm is always whole: no gradient passes, not even a rounded zero.
    slope = tl.where((c * SIDE + tl.arange(0, SIDE) > 0)[:, None], shrink, 0.0)
    es, es2 = tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP1], tl.float32)
    newer, newer2 = begun(q, q2, K, K2, c - begin, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
    for m in range(begin, tl.minimum(begin + RUN, c + 1)):
        z, z2, newer, newer2 = walked(newer, newer2, q, q2, K, K2, c, m, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
        store_tile(tile_at(Z + tile, m, SIDE), z)
        h = mixed(z, low, UP1, DIAGONAL1, c, m, T, R1, RP1, SIDE, CAREFUL) * shrink
        dw = tl.load(tile_at(DW + tile, m, SIDE)).to(tl.float32)
        da = mixed(dw, gs, DOWN2, DIAGONAL2, c, m, T, R2, RP2, SIDE, LOOSE)
        a = tl.maximum(h, 0.0)
        if GLU:
            store_tile(tile_at(Z2 + tile, m, SIDE), z2)
            h2 = mixed(z2, low2, UP12, DIAGONAL12, c, m, T, R1, RP1, SIDE, CAREFUL)
            scale, slope2 = softplus_and_slope(h2, VALUES != "bf16")
            dh2 = da * a * slope2
            store_tile(tile_at(DH2 + tile, m, SIDE), dh2)
            if UP1 is not None:
                es2 += lowered(dh2, UP12, m, T, R1, RP1, SIDE, LOOSE)
            da *= scale
            a *= scale
        store_tile(tile_at(A + tile, m, SIDE), a)
        dh = (tl.where(h > 0, da, 0.0) - h * delta) * slope
        store_tile(tile_at(DH + tile, m, SIDE), dh)
        if UP1 is not None:
            es += lowered(dh, UP1, m, T, R1, RP1, SIDE, LOOSE)
    if UP1 is not None:
        sets = (tl.num_programs(1) // heads) * heads * (1 + GLU)
        PART += ((run * sets + scored) * stripe + mine).to(tl.int64) * (SIDE * R1)
        store_rows(PART, es, 0, SIDE, R1, R1, R1 == RP1, RP1, SIDE)
        if GLU:
            store_rows(PART + (heads * stripe).to(tl.int64) * (SIDE * R1), es2, 0, SIDE, R1, R1, R1 == RP1, RP1, SIDE)


@triton.jit(do_not_specialize=["T", "heads", "first", "stripe", "runs"])
def sum_runs(
    PART, CONTROL, U, SCALED, DCONTROL, T, heads, first, stripe, runs, s_batch, s_head, s_row,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Adds up the runs' parts: the control's gradient, and the sums times the control."""
    mine, at = tl.program_id(0), tl.program_id(1)
    place, step = (at * stripe + mine).to(tl.int64) * (SIDE * R), (tl.num_programs(1) * stripe).to(tl.int64) * (SIDE * R)
    total = tl.zeros([SIDE, RP], tl.float32)
    for run in range(runs):
        total += rows(PART + place + run * step, 0, SIDE, R, R, R == RP, RP, SIDE)
    begin, flat = (first + mine) * SIDE, at.to(tl.int64) * T * R
    store_rows(DCONTROL + flat, total * rows(U + flat, begin, T, R, R, R == RP, RP, SIDE), begin, T, R, R, R == RP, RP, SIDE)
    control = rows(start(CONTROL, at, heads, s_batch, s_head), begin, T, s_row, R, R == RP, RP, SIDE).to(tl.float32)
    store_rows(SCALED + place, total * control, 0, SIDE, R, R, R == RP, RP, SIDE)


@triton.jit
def mixed_at(
    X, low, UP, DIAGONAL, c, m, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, HOW: tl.constexpr
):  # fmt: skip
    """Of tile m in scratch."""
    return mixed(tl.load(tile_at(X, m, SIDE)).to(tl.float32), low, UP, DIAGONAL, c, m, T, R, RP, SIDE, HOW)


@triton.jit(do_not_specialize=["T", "heads", "first", "stripe", "runs", "tiles"])
def keys_backward(
    K, DOWN1, DIAGONAL1, UP2, DIAGONAL2, CONTROL2, Y, ES, DH, DH2, A, DZ, DZ2, W, PART,
    T, heads, first, stripe, runs, tiles, k_batch, k_head, k_row, s2_batch, s2_head, s2_row,
    E: tl.constexpr, EP: tl.constexpr, R1: tl.constexpr, R2: tl.constexpr, RP1: tl.constexpr, RP2: tl.constexpr,
    SIDE: tl.constexpr, RUN: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr, LOOSE: tl.constexpr,
):  # fmt: skip
    """dz and w by key, and this run's part of dq."""
    mine, run, at = tl.program_id(0) // runs, tl.program_id(0) % runs, tl.program_id(1)
    c, begin, head = first + mine, run * RUN, at % heads
    K = start(K, at, heads, k_batch, k_head)
    flat, place = at.to(tl.int64) * T, (at * stripe + mine).to(tl.int64)
    scored = (at // heads) * heads * (1 + GLU) + head
    sets = (tl.num_programs(1) // heads) * heads * (1 + GLU)
    far = heads * T.to(tl.int64) * R1
    tile = place * tiles * (SIDE * SIDE)
    DOWN12, DIAGONAL12 = DOWN1, DIAGONAL1
    es, es2, y = tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP1], tl.float32), tl.zeros([SIDE, RP2], tl.float32)
    if DOWN1 is not None:
        DOWN1 += head * T.to(tl.int64) * R1
        DIAGONAL1 += head * T
        DOWN12, DIAGONAL12 = DOWN1 + far, DIAGONAL1 + heads * T
        ES += (scored * stripe + mine).to(tl.int64) * (SIDE * R1)
        es = rows(ES, 0, SIDE, R1, R1, R1 == RP1, RP1, SIDE)
        if GLU:
            es2 = rows(ES + (heads * stripe).to(tl.int64) * (SIDE * R1), 0, SIDE, R1, R1, R1 == RP1, RP1, SIDE)
    if UP2 is not None:
        UP2 += head * T.to(tl.int64) * R2
        DIAGONAL2 += head * T
        y = controlled(Y + flat * R2, start(CONTROL2, at, heads, s2_batch, s2_head), c * SIDE, T, s2_row, R2, RP2, SIDE)
    dq, dq2 = tl.zeros([SIDE, EP], tl.float32), tl.zeros([SIDE, EP], tl.float32)
    nothing = tl.zeros([SIDE, SIDE], tl.float32)
    dz_before, dz2_before, w_before = nothing, nothing, nothing
    if LAG:  # noqa: SIM102 (of compile time, and of run time)
        if (begin > 0) & (begin <= c):  # the last tile of the run before
            dz_before = mixed_at(DH + tile, es, DOWN1, DIAGONAL1, c, begin - 1, T, R1, RP1, SIDE, LOOSE)
            w_before = mixed_at(A + tile, y, UP2, DIAGONAL2, c, begin - 1, T, R2, RP2, SIDE, LOOSE)
            if GLU:
                dz2_before = mixed_at(DH2 + tile, es2, DOWN12, DIAGONAL12, c, begin - 1, T, R1, RP1, SIDE, LOOSE)
    for m in range(begin, tl.minimum(begin + RUN, c + 1)):
        g = c - m if LAG else m
        dz = mixed_at(DH + tile, es, DOWN1, DIAGONAL1, c, m, T, R1, RP1, SIDE, LOOSE)
        turned_dz = by_key(dz, dz_before, SIDE, LAG)
        dz_before = dz
        store_tile(tile_at(DZ + tile, g, SIDE), turned_dz)
        dq += product(turned_dz, rows(K, g * SIDE, T, k_row, E, E == EP, EP, SIDE), LOOSE)
        if GLU:
            dz2 = mixed_at(DH2 + tile, es2, DOWN12, DIAGONAL12, c, m, T, R1, RP1, SIDE, LOOSE)
            turned_dz2 = by_key(dz2, dz2_before, SIDE, LAG)
            dz2_before = dz2
            store_tile(tile_at(DZ2 + tile, g, SIDE), turned_dz2)
            dq2 += product(turned_dz2, rows(K + heads * k_head, g * SIDE, T, k_row, E, E == EP, EP, SIDE), LOOSE)
        w = mixed_at(A + tile, y, UP2, DIAGONAL2, c, m, T, R2, RP2, SIDE, LOOSE)
        store_tile(tile_at(W + tile, g, SIDE), by_key(w, w_before, SIDE, LAG))
        w_before = w
    PART += ((run * sets + scored) * stripe + mine).to(tl.int64) * (SIDE * E)
    store_rows(PART, dq, 0, SIDE, E, E, E == EP, EP, SIDE)
    if GLU:
        store_rows(PART + (heads * stripe).to(tl.int64) * (SIDE * E), dq2, 0, SIDE, E, E, E == EP, EP, SIDE)
