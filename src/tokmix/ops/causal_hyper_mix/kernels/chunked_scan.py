"""Kernels of causal HyperMixing: the exact scan, parallel over chunks of a sequence as well as over sequences.

    H_t = λ_t H_{t-1} + w_t v_tᵀ,   y_t = GELU(s_t H_t)ᵀ o_t            [k, e] a head; s_t is given, see `counts` below

The recurrence is linear; the GELU is applied only when the state is read. So the state before each chunk follows from the
chunks' sums, and all chunks are then read in parallel:

    write    sums_c = Σ_t (λ's after t in chunk c) w_t v_tᵀ             a product on the tensor cores
    join     start_{c+1} = Λ_c start_c + sums_c                         one state after the other, every number on its own
    read     every state of a chunk in turn, in registers               y; the state after the last chunk

Backward, with D_t = s_t (o_t dy_tᵀ) ⊙ GELU'(s_t H_t), the gradient of H_t is A_t = D_t + λ_{t+1} A_{t+1}, linear too:

    chunk_backward         from a chunk's end to its start, without the later chunks:
                           do_t = GELU(s_t H_t) dy_t, p_t = <D_t, H_t>, this chunk's part of dw_t = A_t v_t and dv_t = A_tᵀ w_t,
                           and the gradient of the chunk's first state
    join                   from the last chunk to the first: end_c, the gradient of the state behind chunk c
    later_chunks_backward  dw_t += (λ's after t) end_c v_t, dv_t likewise, as products on the tensor cores
                           dlog λ_t = λ_t <A_t, H_{t-1}>, known at every fourth token,
                           elsewhere from dlog λ_t = dlog λ_{t+1} - w_t · dw_t + p_t

The backward pass needs the states in reverse order. `chunk_backward` first runs forward and saves every fourth state, then
recomputes four states at a time. No atomics: programs own rows of the state, and `later_chunks_backward` adds their parts of dv.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops import flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.causal_hyper_mix.kernels.tiles import advance, gelu, kept_after, load, rows, start, token
from tokmix.ops.kernels.rounding import store_rounded


@triton.jit(do_not_specialize=["L", "chunks", "heads"])
def write(
    W, V, LOG, REAL, STARTS, KEPT, L, chunks, heads, w_batch, w_head, w_row, v_batch, v_head, v_row,
    K: tl.constexpr, E: tl.constexpr, KB: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one chunk adds to the state, written to the start of the next, and the share of the state that it keeps."""
    at, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    tokens = tl.arange(0, CHUNK)
    ks, es = tl.program_id(1) * KB + tl.arange(0, KB), tl.arange(0, EP)
    begin = chunk * CHUNK
    count = tl.minimum(L - begin, CHUNK)
    flat = at.to(tl.int64) * L + begin
    if REAL is not None:
        REAL += (at // heads).to(tl.int64) * L + begin
    w = rows(W + start(at, heads, w_batch, w_head, w_row, begin), REAL, tokens, count, w_row, ks, K)
    v = rows(V + start(at, heads, v_batch, v_head, v_row, begin), REAL, tokens, count, v_row, es, E)
    if LOG is not None:
        after, kept = kept_after(LOG + flat, tokens, count)
        w *= after[:, None]
        if tl.program_id(1) == 0:
            tl.store(KEPT + tl.program_id(0), kept)
    if STARTS is not None and chunk + 1 < chunks:
        added = tl.dot(tl.trans(w), v, input_precision=PRECISION)
        to = STARTS + (tl.program_id(0) + 1).to(tl.int64) * (K * E) + ks[:, None] * E + es[None, :]
        tl.store(to, added, mask=(ks < K)[:, None] & (es < E)[None, :])


@triton.jit(do_not_specialize=["chunks"])
def join(GIVEN, PARTS, KEPT, RESULT, chunks, SIZE: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr):
    """Turn PARTS [N, chunks, SIZE] into states in place. Forwards: from GIVEN, which enters the first chunk. BACK: from GIVEN, which
    enters the last chunk, to the one before the first chunk, which is added to RESULT."""
    at = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = cols < SIZE
    state = tl.load(GIVEN + at * SIZE + cols, mask=there, other=0.0)
    PARTS += at * chunks * SIZE + cols
    first = (chunks - 1).to(tl.int64) * SIZE if BACK else 0
    tl.store(PARTS + first, state, mask=there)
    for i in tl.range(1, chunks, num_stages=4):
        to = chunks - 1 - i if BACK else i
        kept = 1.0
        if KEPT is not None:
            kept = tl.load(KEPT + at * chunks + (to + 1 if BACK else to - 1))
        state = state * kept + tl.load(PARTS + to.to(tl.int64) * SIZE, mask=there, other=0.0)
        tl.store(PARTS + to.to(tl.int64) * SIZE, state, mask=there)
    if BACK:
        kept = 1.0
        if KEPT is not None:
            kept = tl.load(KEPT + at * chunks)
        part = tl.load(RESULT + at * SIZE + cols, mask=there, other=0.0)
        tl.store(RESULT + at * SIZE + cols, state * kept + part, mask=there)


@triton.jit(do_not_specialize=["L", "chunks", "heads"])
def read(
    W, OUT, V, LOSS, REAL, SCALE, STARTS, Y, LAST, L, chunks, heads,
    w_batch, w_head, w_row, o_batch, o_head, o_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    K: tl.constexpr, E: tl.constexpr, KP: tl.constexpr, EB: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One chunk's outputs, EB columns of the state at a time: a sum over k never leaves the program."""
    tiles: tl.constexpr = (E + EB - 1) // EB
    EVEN: tl.constexpr = K == KP and E % EB == 0
    piece, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    at, chunk = piece // chunks, piece % chunks
    ks, es = tl.arange(0, KP), tile * EB + tl.arange(0, EB)
    in_k, in_e = ks < K, es < E
    inside = in_k[:, None] & in_e[None, :]
    cell = ks[:, None] * E + es[None, :]
    begin = chunk * CHUNK
    count = tl.minimum(L - begin, CHUNK)
    flat = at.to(tl.int64) * L + begin
    W += start(at, heads, w_batch, w_head, w_row, begin)
    OUT += start(at, heads, o_batch, o_head, o_row, begin)
    V += start(at, heads, v_batch, v_head, v_row, begin)
    Y += start(at, heads, y_batch, y_head, y_row, begin)
    SCALE += flat
    if LOSS is not None:
        LOSS += flat
    if REAL is not None:
        REAL += (at // heads).to(tl.int64) * L + begin
    h = load(STARTS + piece.to(tl.int64) * (K * E) + cell, inside, EVEN)
    for t in tl.range(0, count, num_stages=STAGES):
        w, v = token(W, V, REAL, t, w_row, v_row, ks, es, in_k, in_e, EVEN)
        h = advance(h, w[:, None], v[None, :], LOSS, t)
        o = load(OUT + t * o_row + ks, in_k, EVEN)
        y = tl.sum(gelu(h * tl.load(SCALE + t), EXACT) * o[:, None], 0)
        store_rounded(Y + t * y_row + es, y, in_e)
    if chunk == chunks - 1:
        tl.store(LAST + at.to(tl.int64) * (K * E) + cell, h, mask=inside)
