"""Shared by the kernels of the causal scan: GELU, rows of a chunk, one step of the state."""

from __future__ import annotations

import triton
import triton.language as tl


# ---------------------------------------------------------------- GELU
@triton.jit
def beyond(size, EXACT: tl.constexpr):
    """The normal distribution beyond size >= 0. Its logarithm is so smooth that two to the power of a polynomial gives
    it, fitted for the least error of GELU and its slope: off by 1.2e-6 at most, or by no more than float32 rounds."""
    if EXACT:
        p = -5.624653386e-08 * size + 1.389160236e-06
        p = p * size - 1.520396182e-05
        p = p * size + 9.450964442e-05
        p = p * size - 3.239198857e-04
        p = p * size + 6.286376267e-05
        p = p * size + 6.897287262e-03
        p = p * size - 5.242172796e-02
        p = p * size - 4.592238063e-01
        p = p * size - 1.151104132
        p = p * size - 0.9999999995
    else:
        p = -4.925065627e-04 * size + 7.22961702e-03
        p = p * size - 5.22208314e-02
        p = p * size - 4.595263592e-01
        p = p * size - 1.15101807
        p = p * size - 1.000003284
    return tl.exp2(p)


@triton.jit
def gelu(x, EXACT: tl.constexpr):
    size = tl.abs(x)
    return tl.maximum(x, 0.0) - size * beyond(size, EXACT)


@triton.jit
def gelu_backward(h, scale, o, dy, EXACT: tl.constexpr):
    """GELU(x) at x = scale h, and its slope times scale o dy; scale is in dy already."""
    x = h * scale
    size = tl.abs(x)
    tail = beyond(size, EXACT)
    density = tl.exp2(x * x * -0.7213475204444817 - 1.3257480647361592)
    below = tail - size * density  # the slope at -|x|
    return tl.maximum(x, 0.0) - size * tail, tl.where(x < 0, below, 1.0 - below) * o * dy


# ---------------------------------------------------------------- access
@triton.jit
def load(at, there, EVEN: tl.constexpr):
    """In float32; zero outside. EVEN: the tile fits, nothing is outside."""
    if EVEN:
        x = tl.load(at)
    else:
        x = tl.load(at, mask=there, other=0.0)
    return x.to(tl.float32)


@triton.jit
def start(at, heads, batch_stride, head_stride, row_stride, token):
    """Offset of a token's row in a [B, H, L, n] tensor; at: index over batch and head."""
    return (at // heads).to(tl.int64) * batch_stride + (at % heads).to(tl.int64) * head_stride + token.to(tl.int64) * row_stride


@triton.jit
def advance(h, w, v, LOSS, t):
    """The next state. LOSS holds λ - 1: a λ near 1 that is rounded the same way at every step would drift."""
    if LOSS is not None:
        h += h * tl.load(LOSS + t)
    return h + w * v


@triton.jit
def token(W, V, REAL, t, w_row, v_row, ks, es, in_k, in_e, EVEN: tl.constexpr):
    """A token's w and v, zero at padding."""
    w = load(W + t * w_row + ks, in_k, EVEN)
    v = load(V + t * v_row + es, in_e, EVEN)
    if REAL is not None:
        here = tl.load(REAL + t) != 0
        w = tl.where(here, w, 0.0)
        v = tl.where(here, v, 0.0)
    return w, v


@triton.jit
def rows(X, REAL, tokens, count, row_stride, cols, width: tl.constexpr):
    """[T, C] of a chunk's rows in float32: zero outside and at padding."""
    there = tokens < count
    if REAL is not None:
        there = there & (tl.load(REAL + tokens, mask=there, other=0) != 0)
    there = there[:, None] & (cols < width)[None, :]
    return tl.load(X + tokens[:, None] * row_stride + cols[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit
def kept_after(LOG, tokens, count):
    """The product of all λ after each token of a chunk, [T], and of all λ of the chunk."""
    own = tl.load(LOG + tokens, mask=tokens < count, other=0.0)
    later = tl.load(LOG + tokens + 1, mask=tokens + 1 < count, other=0.0)
    return tl.exp(tl.cumsum(later, 0, reverse=True)), tl.exp(tl.sum(own, 0))
