"""Kernels of block-causal HyperMixing. `write` and `join` of chunked_scan.py are shared with the exact scan.

    y_t = Λ_t s_t/s_b GELU(s_b H_b)ᵀ o_t  +  ½ s_t Σ_{b<u≤t} Λ_t/Λ_u (w_u · o_t) v_u        b the last border before t, s_t given

    write, join      H_b at every border        as in the exact scan
    block_read       y                          one program a block and head

Backward, with G = GELU(s_b H_b), far_t = Λ_t s_t/s_b, S = o wᵀ, R = dy vᵀ and M_tu = ½ s_t Λ_t/Λ_u:

    block_border     dG = Σ far_t o_t dy_tᵀ ──> the gradient of the block's first state
    join             from the last block to the first: D, the gradient of the state at this block's end
    block_backward   do = (R⊙M) w + far ⊙ dy Gᵀ     dw = (R⊙M)ᵀ o + after ⊙ v Dᵀ     dv = (S⊙M)ᵀ dy + after ⊙ w D
                     and the gradients of s and log λ. after_u: the product of the λ after u in its block

Decays are exp(f_t - f_u) with f_t = log Λ_t, summed from the block's first token. A block is one tile. No atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.causal_hyper_mix.kernels.tiles import kept_after, rows, start
from tokmix.ops.hyper_mix.kernels.reassociated import gelu, gelu_and_slope
from tokmix.ops.kernels.rounding import operand, store_rounded


@triton.jit
def place(at, chunk, L, CHUNK: tl.constexpr):
    """A block's first token, its number of tokens, and its offset in [B, H, L]."""
    begin = chunk * CHUNK
    return begin, tl.minimum(L - begin, CHUNK), at.to(tl.int64) * L + begin


@triton.jit
def tile(X, REAL, at, heads, batch_stride, head_stride, row_stride, begin, tokens, count, cols, width: tl.constexpr):
    """A block's rows of a [B, H, L, n] tensor in float32, zero outside and at padding."""
    return rows(X + start(at, heads, batch_stride, head_stride, row_stride, begin), REAL, tokens, count, row_stride, cols, width)


@triton.jit
def fades(LOG, tokens, count):
    """f_t, and Λ_t/Λ_u for u <= t, zero elsewhere."""
    earlier = tokens[:, None] >= tokens[None, :]
    if LOG is None:
        fade = tl.zeros_like(tokens).to(tl.float32)
        kept = tl.where(earlier, 1.0, 0.0)
    else:
        fade = tl.cumsum(tl.load(LOG + tokens, mask=tokens < count, other=0.0), 0)
        kept = tl.where(earlier, tl.exp(tl.where(earlier, fade[:, None] - fade[None, :], 0.0)), 0.0)
    return fade, kept


@triton.jit(do_not_specialize=["L", "chunks", "heads"])
def block_read(
    W, OUT, V, LOG, REAL, SCALE, STARTS, Y, L, chunks, heads,
    w_batch, w_head, w_row, o_batch, o_head, o_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    K: tl.constexpr, E: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    at, chunk = piece // chunks, piece % chunks
    tokens, ks, es = tl.arange(0, CHUNK), tl.arange(0, KP), tl.arange(0, EP)
    begin, count, flat = place(at, chunk, L, CHUNK)
    if REAL is not None:
        REAL += (at // heads).to(tl.int64) * L + begin
    if LOG is not None:
        LOG += flat
    w = operand(tile(W, REAL, at, heads, w_batch, w_head, w_row, begin, tokens, count, ks, K), KIND)
    o = operand(tile(OUT, None, at, heads, o_batch, o_head, o_row, begin, tokens, count, ks, K), KIND)
    v = operand(tile(V, REAL, at, heads, v_batch, v_head, v_row, begin, tokens, count, es, E), KIND)
    scale = tl.load(SCALE + flat + tokens, mask=tokens < count, other=0.0)
    fade, kept = fades(LOG, tokens, count)
    scores = tl.dot(o, tl.trans(w), input_precision=PRECISION) * kept * (0.5 * scale)[:, None]
    y = tl.dot(operand(scores, KIND), v, input_precision=PRECISION)
    if chunk > 0:
        border = tl.load(SCALE + flat - 1)
        inside = (ks < K)[:, None] & (es < E)[None, :]
        h = tl.load(STARTS + piece.to(tl.int64) * (K * E) + ks[:, None] * E + es[None, :], mask=inside, other=0.0)
        read = tl.dot(o, operand(gelu(h * border, KIND), KIND), input_precision=PRECISION)
        y += (tl.exp(fade) * scale / border)[:, None] * read
    to = Y + start(at, heads, y_batch, y_head, y_row, begin) + tokens[:, None] * y_row + es[None, :]
    store_rounded(to, y, (tokens < count)[:, None] & (es < E)[None, :])


@triton.jit(do_not_specialize=["L", "chunks", "heads"])
def block_border(
    OUT, DY, LOG, SCALE, STARTS, ENDS, DBORDER, L, chunks, heads, o_batch, o_head, o_row, dy_batch, dy_head, dy_row,
    K: tl.constexpr, E: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block's start state, written to the end of the block before, and G's part of the gradient of s_b."""
    at, chunk = tl.program_id(0) // (chunks - 1), tl.program_id(0) % (chunks - 1) + 1
    piece = at.to(tl.int64) * chunks + chunk
    tokens, ks, es = tl.arange(0, CHUNK), tl.arange(0, KP), tl.arange(0, EP)
    begin, count, flat = place(at, chunk, L, CHUNK)
    o = tile(OUT, None, at, heads, o_batch, o_head, o_row, begin, tokens, count, ks, K)
    dy = tile(DY, None, at, heads, dy_batch, dy_head, dy_row, begin, tokens, count, es, E)
    far = tl.load(SCALE + flat + tokens, mask=tokens < count, other=0.0)
    if LOG is not None:
        far *= tl.exp(tl.cumsum(tl.load(LOG + flat + tokens, mask=tokens < count, other=0.0), 0))
    border = tl.load(SCALE + flat - 1)
    inside = (ks < K)[:, None] & (es < E)[None, :]
    cell = ks[:, None] * E + es[None, :]
    h = tl.load(STARTS + piece * (K * E) + cell, mask=inside, other=0.0)
    _, slope = gelu_and_slope(h * border, KIND)
    far_dy = operand(dy * (far / border)[:, None], KIND)
    dread = tl.dot(tl.trans(operand(o, KIND)), far_dy, input_precision=PRECISION) * slope
    tl.store(ENDS + (piece - 1) * (K * E) + cell, dread * border, mask=inside)
    tl.store(DBORDER + piece, tl.sum(tl.sum(dread * h, 1), 0))


# long: five gradients share one tile in registers
@triton.jit(do_not_specialize=["L", "chunks", "heads"])
def block_backward(
    W, OUT, V, DY, LOG, REAL, SCALE, STARTS, ENDS, DW, DOUT, DV, DLOG, DSCALE, DBORDER, L, chunks, heads,
    w_batch, w_head, w_row, o_batch, o_head, o_row, v_batch, v_head, v_row, dy_batch, dy_head, dy_row, dv_batch, dv_head, dv_row,
    K: tl.constexpr, E: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    at, chunk = piece // chunks, piece % chunks
    tokens, ks, es = tl.arange(0, CHUNK), tl.arange(0, KP), tl.arange(0, EP)
    begin, count, flat = place(at, chunk, L, CHUNK)
    in_t, in_k, in_e = tokens < count, ks < K, es < E
    real = in_t
    if REAL is not None:
        REAL += (at // heads).to(tl.int64) * L + begin
        real = in_t & (tl.load(REAL + tokens, mask=in_t, other=0) != 0)
    if LOG is not None:
        LOG += flat
    inside = in_k[:, None] & in_e[None, :]
    cell = piece.to(tl.int64) * (K * E) + ks[:, None] * E + es[None, :]
    w_wide = tile(W, REAL, at, heads, w_batch, w_head, w_row, begin, tokens, count, ks, K)
    w = operand(w_wide, KIND)
    o = operand(tile(OUT, None, at, heads, o_batch, o_head, o_row, begin, tokens, count, ks, K), KIND)
    v = operand(tile(V, REAL, at, heads, v_batch, v_head, v_row, begin, tokens, count, es, E), KIND)
    dy_wide = tile(DY, None, at, heads, dy_batch, dy_head, dy_row, begin, tokens, count, es, E)
    dy = operand(dy_wide, KIND)
    scale = tl.load(SCALE + flat + tokens, mask=in_t, other=0.0)
    fade, kept = fades(LOG, tokens, count)
    # the block itself
    scores = tl.dot(o, tl.trans(w), input_precision=PRECISION)
    dscores = tl.dot(dy, tl.trans(v), input_precision=PRECISION) * kept * 0.5  # R ⊙ M, without s_t
    met = dscores * scores
    dscale = tl.sum(met, 1)
    if LOG is not None:
        # log λ_t stands in Λ_a/Λ_u for u < t <= a: sums over such pairs, and no differences of longer ones, which lose digits
        since = tl.cumsum(met * scale[:, None], 0, reverse=True)  # over a, from t on
        dlog = tl.sum(tl.where(tokens[:, None] > tokens[None, :], since, 0.0), 1)
    dscores = operand(dscores * scale[:, None], KIND)
    do = tl.dot(dscores, w, input_precision=PRECISION)
    dw = tl.dot(tl.trans(dscores), o, input_precision=PRECISION)
    dv = tl.dot(tl.trans(operand(scores * kept * (0.5 * scale)[:, None], KIND)), dy, input_precision=PRECISION)
    # gradient of the state after this block, from later blocks
    end = tl.load(ENDS + cell, mask=inside, other=0.0)
    narrow_end = operand(end, KIND)
    dw_after = tl.dot(v, tl.trans(narrow_end), input_precision=PRECISION)
    dv_after = tl.dot(w, narrow_end, input_precision=PRECISION)
    if LOG is not None:
        after, whole = kept_after(LOG, tokens, count)
        dw_after *= after[:, None]
        dv_after *= after[:, None]
        passed = tl.sum(w_wide * dw_after, 1)
        dlog += tl.cumsum(passed, 0) - passed
    dw += dw_after
    dv += dv_after
    # from the state before it
    if chunk > 0:
        border = tl.load(SCALE + flat - 1)
        h = tl.load(STARTS + cell, mask=inside, other=0.0)
        g = operand(gelu(h * border, KIND), KIND)
        share = tl.exp(fade) / border
        dfar = tl.sum(dy_wide * tl.dot(o, g, input_precision=PRECISION), 1)
        do += (share * scale)[:, None] * tl.dot(dy, tl.trans(g), input_precision=PRECISION)
        dscale += dfar * share
        lost = dfar * share * scale
        tl.store(DBORDER + piece, tl.load(DBORDER + piece) - tl.sum(lost, 0) / border)
        if LOG is not None:
            dlog += tl.cumsum(lost, 0, reverse=True) + whole * tl.sum(tl.sum(end * h, 1), 0)
    to = (flat + tokens[:, None]) * K + ks[None, :]
    there = in_t[:, None] & in_k[None, :]
    store_rounded(DOUT + to, do, there)
    store_rounded(DW + to, tl.where(real[:, None], dw, 0.0), there)
    to = DV + start(at, heads, dv_batch, dv_head, dv_row, begin) + tokens[:, None] * dv_row + es[None, :]
    store_rounded(to, tl.where(real[:, None], dv, 0.0), in_t[:, None] & in_e[None, :])
    tl.store(DSCALE + flat + tokens, dscale, mask=in_t)
    if LOG is not None:
        tl.store(DLOG + flat + tokens, dlog, mask=in_t)
