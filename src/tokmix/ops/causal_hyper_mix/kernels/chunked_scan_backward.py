"""The backward kernels of the causal scan; chunked_scan.py shows what they compute."""
# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.causal_hyper_mix.kernels.tiles import advance, gelu_backward, kept_after, load, rows, start, token
from tokmix.ops.kernels.rounding import store_rounded

STEPS = tl.constexpr(4)  # tokens between two states that `chunk_backward` saves


@triton.jit
def row_sums(x):
    """[KB, EO, EI] -> [KB]"""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] * x.shape[2]]), 1)


@triton.jit
def token_backward(
    h, dh, loss, w, v, o, dy, t, count, LOSS, SCALE, DO, DW, DV, P, ks, es,
    K: tl.constexpr, E: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One token, from its state h and the gradient dh of the next token's state (not yet multiplied by 1 + loss). A token past
    the end of the chunk repeats the last one and adds no gradient."""
    real = t < count
    at = tl.minimum(t, count - 1)
    scale = tl.load(SCALE + at)
    g, d = gelu_backward(h, scale, o[:, None, None], (dy * tl.where(real, scale, 0.0))[None, :, :], EXACT)
    store_rounded(DO + t * K + ks, row_sums(g * dy[None, :, :]), ks < tl.where(real, K, 0))
    tl.store(P + t, tl.sum(d * h), mask=real)
    if EXACT:
        dh += dh * loss + d
    else:
        dh = dh * (1.0 + loss) + d
    tl.store(DW + t * K + ks, row_sums(dh * v[None, :, :]), mask=ks < tl.where(real, K, 0))
    store_rounded(DV + t * E + es, tl.sum(dh * w[:, None, None], 0), es < tl.where(real, E, 0))
    loss = 0.0
    if LOSS is not None:
        loss = tl.where(real, tl.load(LOSS + at), 0.0)
    return dh, loss


# long: the four tokens between two saved states are unrolled
@triton.jit(do_not_specialize=["L", "chunks", "heads", "pieces", "turns"])
def chunk_backward(
    W, OUT, V, DY, LOSS, REAL, SCALE, STARTS, NOTES, DO, DW, DV, P, R, DSTATE, ENDS, L, chunks, heads, pieces, turns,
    w_batch, w_head, w_row, o_batch, o_head, o_row, v_batch, v_head, v_row, dy_batch, dy_head, dy_row,
    K: tl.constexpr, E: tl.constexpr, KB: tl.constexpr, EO: tl.constexpr, EI: tl.constexpr, CHUNK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """KB rows of the state of a chunk. e is split in two dimensions [EO, EI], which leaves fewer lanes to sum over."""
    TILES: tl.constexpr = (K + KB - 1) // KB
    EVEN: tl.constexpr = K % KB == 0 and E == EO * EI
    SIZE: tl.constexpr = KB * EO * EI
    es = tl.arange(0, EO)[:, None] * EI + tl.arange(0, EI)[None, :]
    in_e = es < E
    own = tl.arange(0, KB)[:, None, None] * (EO * EI) + es[None, :, :]
    notes = NOTES + tl.program_id(0).to(tl.int64) * (CHUNK // STEPS * SIZE) + own
    for i in range(turns):
        work = i * tl.num_programs(0) + tl.program_id(0)
        if work < pieces * TILES:
            piece, tile = work // TILES, work % TILES
            at, chunk = piece // chunks, piece % chunks
            ks = tile * KB + tl.arange(0, KB)
            in_k = ks < K
            inside = in_k[:, None, None] & in_e[None, :, :]
            cell = ks[:, None, None] * E + es[None, :, :]
            begin = chunk * CHUNK
            count = tl.minimum(L - begin, CHUNK)
            flat = at.to(tl.int64) * L + begin
            w_at = W + start(at, heads, w_batch, w_head, w_row, begin)
            o_at = OUT + start(at, heads, o_batch, o_head, o_row, begin)
            v_at = V + start(at, heads, v_batch, v_head, v_row, begin)
            dy_at = DY + start(at, heads, dy_batch, dy_head, dy_row, begin)
            scale_at = SCALE + flat
            part = tile.to(tl.int64) * (pieces // chunks) * L + flat
            p_at, dv_at, do_at, dw_at = P + part, DV + part * E, DO + flat * K, DW + flat * K
            loss_at = None if LOSS is None else LOSS + flat
            real_at = None if REAL is None else REAL + (at // heads).to(tl.int64) * L + begin
            h = load(STARTS + piece.to(tl.int64) * (K * E) + cell, inside, EVEN)
            last = (count - 1) // STEPS
            for n in range(last):
                tl.store(notes + n * SIZE, h)
                for j in tl.static_range(STEPS):
                    w, v = token(w_at, v_at, real_at, n * STEPS + j, w_row, v_row, ks, es, in_k, in_e, EVEN)
                    h = advance(h, w[:, None, None], v[None, :, :], loss_at, n * STEPS + j)
            tl.store(notes + last * SIZE, h)
            tl.debug_barrier()
            dh = tl.zeros([KB, EO, EI], tl.float32)
            loss = 0.0
            for back in range(last + 1):
                n = last - back
                t = n * STEPS
                end = count - 1
                at1, at2, at3 = tl.minimum(t + 1, end), tl.minimum(t + 2, end), tl.minimum(t + 3, end)
                o3, dy3 = load(o_at + at3 * o_row + ks, in_k, EVEN), load(dy_at + at3 * dy_row + es, in_e, EVEN)
                w, v = token(w_at, v_at, real_at, t, w_row, v_row, ks, es, in_k, in_e, EVEN)
                h = advance(tl.load(notes + n * SIZE), w[:, None, None], v[None, :, :], loss_at, t)
                w, v = token(w_at, v_at, real_at, at1, w_row, v_row, ks, es, in_k, in_e, EVEN)
                middle = advance(h, w[:, None, None], v[None, :, :], loss_at, at1)
                w, v = token(w_at, v_at, real_at, at2, w_row, v_row, ks, es, in_k, in_e, EVEN)
                h = advance(middle, w[:, None, None], v[None, :, :], loss_at, at2)
                w, v = token(w_at, v_at, real_at, at3, w_row, v_row, ks, es, in_k, in_e, EVEN)
                h = advance(h, w[:, None, None], v[None, :, :], loss_at, at3)
                o2, dy2 = load(o_at + at2 * o_row + ks, in_k, EVEN), load(dy_at + at2 * dy_row + es, in_e, EVEN)
                dh, loss = token_backward(
                    h, dh, loss, w, v, o3, dy3, t + 3, count, loss_at, scale_at, do_at, dw_at, dv_at, p_at, ks, es, K, E, EXACT
                )
                o1, dy1 = load(o_at + at1 * o_row + ks, in_k, EVEN), load(dy_at + at1 * dy_row + es, in_e, EVEN)
                w, v = token(w_at, v_at, real_at, at2, w_row, v_row, ks, es, in_k, in_e, EVEN)
                h = advance(middle, w[:, None, None], v[None, :, :], loss_at, at2)
                dh, loss = token_backward(
                    h, dh, loss, w, v, o2, dy2, t + 2, count, loss_at, scale_at, do_at, dw_at, dv_at, p_at, ks, es, K, E, EXACT
                )
                o0, dy0 = load(o_at + t * o_row + ks, in_k, EVEN), load(dy_at + t * dy_row + es, in_e, EVEN)
                w, v = token(w_at, v_at, real_at, at1, w_row, v_row, ks, es, in_k, in_e, EVEN)
                dh, loss = token_backward(
                    middle, dh, loss, w, v, o1, dy1, t + 1, count, loss_at, scale_at, do_at, dw_at, dv_at, p_at, ks, es, K, E, EXACT
                )
                before = tl.load(notes + n * SIZE)
                w, v = token(w_at, v_at, real_at, t, w_row, v_row, ks, es, in_k, in_e, EVEN)
                h = advance(before, w[:, None, None], v[None, :, :], loss_at, t)
                dh, loss = token_backward(
                    h, dh, loss, w, v, o0, dy0, t, count, loss_at, scale_at, do_at, dw_at, dv_at, p_at, ks, es, K, E, EXACT
                )
                if LOSS is not None:
                    tl.store(R + (tile * pieces + piece) * (CHUNK // STEPS) + n, (1.0 + loss) * tl.sum(dh * before))
            dh += dh * loss
            if chunk == 0:
                tl.store(DSTATE + at.to(tl.int64) * (K * E) + cell, dh, mask=inside)
            else:
                tl.store(ENDS + (piece - 1).to(tl.int64) * (K * E) + cell, dh, mask=inside)
            tl.debug_barrier()


# long: the two gradients share every load
@triton.jit(do_not_specialize=["L", "chunks", "heads", "pieces"])
def later_chunks_backward(
    W, V, LOG, REAL, STARTS, LAST, ENDS, DW_PART, DV_PART, P, R, DW, DV, DLOG, L, chunks, heads, pieces,
    w_batch, w_head, w_row, v_batch, v_head, v_row, dv_batch, dv_head, dv_row,
    K: tl.constexpr, E: tl.constexpr, KB: tl.constexpr, EP: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the gradients that come from later chunks to those of `chunk_backward`, and computes the gradient of log λ."""
    piece = tl.program_id(0)
    at, chunk = piece // chunks, piece % chunks
    tokens, es = tl.arange(0, CHUNK), tl.arange(0, EP)
    begin = chunk * CHUNK
    count = tl.minimum(L - begin, CHUNK)
    flat = at.to(tl.int64) * L + begin
    total = (pieces // chunks).to(tl.int64) * L  # tokens of all heads
    in_t, in_e = tokens < count, es < E
    real = in_t
    if REAL is not None:
        REAL += (at // heads).to(tl.int64) * L + begin
        real = in_t & (tl.load(REAL + tokens, mask=in_t, other=0) != 0)
    W += start(at, heads, w_batch, w_head, w_row, begin)
    v = rows(V + start(at, heads, v_batch, v_head, v_row, begin), REAL, tokens, count, v_row, es, E)
    if LOG is not None:
        after, _ = kept_after(LOG + flat, tokens, count)
    inner = tl.zeros([CHUNK], tl.float32)  # w_t · dw_t inside the chunk
    outer = tl.zeros([CHUNK], tl.float32)  # and from beyond
    met = tl.zeros([KB], tl.float32)  # <end, last state>
    dv = tl.zeros([CHUNK, EP], tl.float32)
    for tile in range((K + KB - 1) // KB):
        ks = tile * KB + tl.arange(0, KB)
        in_k = ks < K
        cell = ks[:, None] * E + es[None, :]
        inside = in_k[:, None] & in_e[None, :]
        end = tl.load(ENDS + piece.to(tl.int64) * (K * E) + cell, mask=inside, other=0.0)
        w = rows(W, REAL, tokens, count, w_row, ks, K)
        dw = tl.dot(v, tl.trans(end), input_precision=PRECISION)
        dv = tl.dot(w, end, dv, input_precision=PRECISION)
        if LOG is not None:
            dw *= after[:, None]
        to = (flat + tokens[:, None]) * K + ks[None, :]
        there = in_t[:, None] & in_k[None, :]
        part = tl.load(DW_PART + to, mask=real[:, None] & in_k[None, :], other=0.0)
        store_rounded(DW + to, dw + part, there)
        if LOG is not None:
            inner += tl.sum(w * part, 1)
            outer += tl.sum(w * dw, 1)
            if chunk == chunks - 1:
                h = tl.load(LAST + at.to(tl.int64) * (K * E) + cell, mask=inside, other=0.0)
            else:
                h = tl.load(STARTS + (piece + 1).to(tl.int64) * (K * E) + cell, mask=inside, other=0.0)
            met += tl.sum(end * h, 1)
    if LOG is not None:
        dv *= after[:, None]
        groups = tl.arange(0, CHUNK // STEPS)
        known = tl.zeros([CHUNK // STEPS], tl.float32)
        next_known = tl.zeros([CHUNK // STEPS], tl.float32)
        for part in range(PARTS):
            inner -= tl.load(P + part * total + flat + tokens, mask=in_t, other=0.0)
            at_group = R + (part * pieces + piece) * (CHUNK // STEPS) + groups
            known += tl.load(at_group, mask=groups * STEPS < count, other=0.0)
            next_known += tl.load(at_group + 1, mask=(groups + 1) * STEPS < count, other=0.0)
        # From later tokens to earlier ones, so that tokens behind the last one with a gradient get an exact zero.
        steps, place = tl.reshape(inner, [CHUNK // STEPS, STEPS]), tl.arange(0, STEPS)
        from_here = place[:, None] <= place[None, :]
        dlog = next_known[:, None] - tl.sum(tl.where(from_here[None, :, :], steps[:, None, :], 0.0), 2)
        dlog = tl.reshape(tl.where(place[None, :] == 0, known[:, None], dlog), [CHUNK])
        dlog += tl.sum(met, 0) - tl.cumsum(outer, 0, reverse=True)
        tl.store(DLOG + flat + tokens, dlog, mask=in_t)
    there = in_t[:, None] & in_e[None, :]
    for part in range(PARTS):
        dv += tl.load(DV_PART + (part * total + flat + tokens[:, None]) * E + es[None, :], mask=there, other=0.0).to(tl.float32)
    to = DV + start(at, heads, dv_batch, dv_head, dv_row, begin) + tokens[:, None] * dv_row + es[None, :]
    store_rounded(to, tl.where(real[:, None], dv, 0.0), there)
