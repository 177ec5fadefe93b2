"""Sums over the queries of a stripe, from the tiles that `backward` left in scratch memory.

    banks    dA1 = zᵀ (s1 E)     dB1 = dhᵀ (s1 u)     dp1 = Σ z dh       for each lag (or position)
             dA2 = aᵀ (s2 G)     dB2 = dwᵀ (s2 y)     dp2 = Σ a dw
    keys     dk = dzᵀ q,  dv = wᵀ do                                     for each key

Every program adds to numbers of its own, stripe after stripe: no atomics, and the same sums every time. A program of `banks`
owns the tiles of the same lags (without lag layout: of the same keys) in every share-th sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.hyper_mlp.kernels.tiles import controlled, product, rows, start, store_rows, tile_at


@triton.jit
def put_sums(DOWN, UP, DIAGONAL, down, up, diagonal, at, tile, tiles, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr):
    """Add to [..., tiles SIDE, R] and [..., tiles SIDE]; at: index over the dimensions before the tiles."""
    r, cols = tl.arange(0, SIDE), tl.arange(0, RP)[None, :]
    first = (at.to(tl.int64) * tiles + tile) * SIDE
    spot = first * R + r[:, None] * R + cols
    tl.store(DOWN + spot, tl.load(DOWN + spot, mask=cols < R, other=0.0) + down, mask=cols < R)
    tl.store(UP + spot, tl.load(UP + spot, mask=cols < R, other=0.0) + up, mask=cols < R)
    tl.store(DIAGONAL + first + r, tl.load(DIAGONAL + first + r) + diagonal)


@triton.jit(do_not_specialize=["T", "heads", "kinds", "branch", "first", "stripe", "tiles", "sequences", "shares", "total"])
def banks(
    X, DX, FOR_DOWN, U, CONTROL, DOWN, UP, DIAGONAL,
    T, heads, kinds, branch, first, stripe, tiles, sequences, shares, total, s_batch, s_head, s_row,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, LOOSE: tl.constexpr,
):  # fmt: skip
    """X went into R, DX came back to its output; FOR_DOWN are s E (or s G), U s control s u (or s y). kinds: heads of scores in
    all; branch: the first of these. Sums lie as [shares, kinds, total SIDE, R]."""
    own, share, head = tl.program_id(0), tl.program_id(1) % shares, tl.program_id(1) // shares
    down, up, diagonal = tl.zeros([SIDE, RP], tl.float32), tl.zeros([SIDE, RP], tl.float32), tl.zeros([SIDE], tl.float32)
    newest = tl.maximum(own - first, 0)  # the first tile of queries that has such lags
    each = stripe - newest
    for i in range(each * tl.cdiv(sequences - share, shares)):
        sequence, mine = share + (i // each) * shares, newest + i % each
        c = first + mine
        at, scored = sequence * heads + head, sequence * kinds + branch + head
        tile = ((at * stripe + mine) * tiles).to(tl.int64) * (SIDE * SIDE)
        x, dx = tl.load(tile_at(X + tile, own, SIDE)), tl.load(tile_at(DX + tile, own, SIDE))
        low = controlled(
            U + scored.to(tl.int64) * T * R, start(CONTROL, scored, kinds, s_batch, s_head), c * SIDE, T, s_row, R, RP, SIDE
        )  # fmt: skip
        for_down = rows(FOR_DOWN + (scored * stripe + mine).to(tl.int64) * (SIDE * R), 0, SIDE, R, R, R == RP, RP, SIDE)
        down += product(tl.trans(x), for_down, LOOSE)
        up += product(tl.trans(dx), low, LOOSE)
        diagonal += tl.sum(x.to(tl.float32) * dx.to(tl.float32), 0)
    put_sums(DOWN, UP, DIAGONAL, down, up, diagonal, share * kinds + branch + head, own, total, R, RP, SIDE)


@triton.jit(do_not_specialize=["T", "heads", "first", "stripe", "tiles"])
def keys(
    X, BY, SUM, T, heads, first, stripe, tiles, by_batch, by_head, by_row, sum_batch, sum_head, sum_row,
    F: tl.constexpr, FP: tl.constexpr, SIDE: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """SUM += Xᵀ BY for one tile of keys: dk from dz and q, dv from w and do."""
    g, at, skip = tl.program_id(0), tl.program_id(1), tl.program_id(2) * FP
    BY, SUM = start(BY, at, heads, by_batch, by_head) + skip, start(SUM, at, heads, sum_batch, sum_head) + skip
    total = rows(SUM, g * SIDE, T, sum_row, F - skip, F % FP == 0, FP, SIDE).to(tl.float32)
    X += ((at * stripe) * tiles + g).to(tl.int64) * (SIDE * SIDE)
    for mine in range(tl.maximum(g - first, 0), stripe):
        x = tl.load(tile_at(X, mine * tiles, SIDE))
        by = rows(BY, (first + mine) * SIDE, T, by_row, F - skip, F % FP == 0, FP, SIDE)
        total += product(tl.trans(x), by, HOW)
    store_rows(SUM, total, g * SIDE, T, sum_row, F - skip, F % FP == 0, FP, SIDE)
