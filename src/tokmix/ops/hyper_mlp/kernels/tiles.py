"""Shared by the kernels of HyperMLP: a tile of scores by lag, and the banks' products with it.

A tile holds SIDE queries and as many lags: query c SIDE + a, lag m SIDE + l. So one tile of the banks serves it, but its keys
lie in two tiles of keys. The queries' product with the tile of keys c - m, row a rotated until column l holds the key
(a - l) mod SIDE ("turned"), holds the lags

    m SIDE + l          where l <= a ("near")
    (m - 1) SIDE + l    where l > a

so a tile of lags is the near half of one such product and the rest of the next, of older keys: a walk over m makes one product
a tile and keeps it for the tile that follows. Back by key it is the same: the near half of one tile of lags and the rest of the
one before, turned again. Lags that reach beyond the first key are in the last tile alone, m = c, where l > a. Without lag
layout m counts tiles of keys, nothing is turned, and it is the keys after their query that stand there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tokmix.ops.kernels.rounding import INTERPRETED, nearest, operand, store_rounded


# ---------------------------------------------------------------- products
@triton.jit
def rounded(x, HOW: tl.constexpr):
    """x as a factor of a product. Tensor cores cut tf32 off, which makes every factor too small: it is rounded by hand."""
    if HOW == "bf16":
        x = operand(x, tl.bfloat16)
    elif HOW == "fp16":
        x = operand(x, tl.float16)
    elif HOW == "tf32":
        x = ((x.to(tl.float32).to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    else:
        x = x.to(tl.float32)
    return x


@triton.jit
def product(x, y, HOW: tl.constexpr):
    """x y, summed in float32; HOW: what the factors are rounded to. bf16x3: two numbers stand for each, 16 bits in all, for
    what decides a sign. A score rounded to 8 bits turns too many of them."""
    if HOW == "bf16x3":
        x_near, y_near = nearest(x, tl.bfloat16).to(tl.float32), nearest(y, tl.bfloat16).to(tl.float32)
        near, far = rounded(x_near, "bf16"), rounded(x - x_near, "bf16")
        high, low = rounded(y_near, "bf16"), rounded(y - y_near, "bf16")
        return tl.dot(near, high, tl.dot(near, low, tl.dot(far, high)))
    PRECISION: tl.constexpr = HOW if HOW != "bf16" and HOW != "fp16" else "tf32"  # of no meaning for 16-bit numbers
    return tl.dot(rounded(x, HOW), rounded(y, HOW), input_precision=PRECISION)


# ---------------------------------------------------------------- access
@triton.jit
def start(X, at, heads, batch_stride, head_stride):
    """Offset of a sequence's head in a [B, H, T, n] tensor; at: index over sequences and heads."""
    return X + (at // heads).to(tl.int64) * batch_stride + (at % heads).to(tl.int64) * head_stride


@triton.jit
def rows(X, first, T, row_stride, width, EVEN: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr):
    """[SIDE, COLS]: rows from first on; zero before 0, beyond T and beyond width. EVEN: no column is beyond."""
    r, cols = first + tl.arange(0, SIDE), tl.arange(0, COLS)
    inside = ((r >= 0) & (r < T))[:, None]
    if not EVEN:
        inside = inside & (cols < width)[None, :]
    return tl.load(X + r[:, None] * row_stride + cols[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(X, x, first, T, row_stride, width, EVEN: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr):
    r, cols = first + tl.arange(0, SIDE), tl.arange(0, COLS)
    inside = (r < T)[:, None]
    if not EVEN:
        inside = inside & (cols < width)[None, :]
    store_rounded(X + r[:, None] * row_stride + cols[None, :], x, inside)


@triton.jit
def numbers(X, first, T, SIDE: tl.constexpr):
    """[SIDE, 1] of a vector; zero beyond T."""
    r = first + tl.arange(0, SIDE)
    return tl.load(X + r, mask=r < T, other=0.0)[:, None]


@triton.jit
def tile_at(X, m, SIDE: tl.constexpr):
    """Pointers to a tile in scratch memory."""
    inside = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    return X + m * (SIDE * SIDE) + inside


@triton.jit
def store_tile(at, x):
    """Into scratch memory."""
    tl.store(at, nearest(x, at.dtype.element_ty))


@triton.jit
def bank_tile(X, m, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr):
    """[SIDE, RP] of a head's bank [T, R]; zero beyond T."""
    return rows(X, m * SIDE, T, R, R, R == RP, RP, SIDE)


# ---------------------------------------------------------------- lags
@triton.jit
def turned(x, SIDE: tl.constexpr, LAG: tl.constexpr):
    """Columns by key to columns by lag, and back."""
    if LAG:
        a, b = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
        x = tl.gather(x, (a - b) & (SIDE - 1), 1)
    return x


@triton.jit
def near_half(SIDE: tl.constexpr):
    return tl.arange(0, SIDE)[None, :] <= tl.arange(0, SIDE)[:, None]


@triton.jit
def there(x, c, m, SIDE: tl.constexpr):
    """Zero if there is no key that a query may see."""
    return tl.where((m < c) | near_half(SIDE), x, 0.0)


@triton.jit
def joined(near, far, SIDE: tl.constexpr):
    return tl.where(near_half(SIDE), near, far)


@triton.jit
def scored(
    q, K, tile, T, k_row,
    E: tl.constexpr, EP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The product with a tile of keys, turned; zero where the tile lies before the first key."""
    return turned(product(q, tl.trans(rows(K, tile * SIDE, T, k_row, E, E == EP, EP, SIDE)), VALUES), SIDE, LAG)


@triton.jit
def tile_of(newer, older, c, m, SIDE: tl.constexpr, LAG: tl.constexpr):
    """Tile m, of the products with the tiles of keys c - m and c - m - 1; without lag layout the latter is that of tile m."""
    if LAG:
        x = joined(newer, older, SIDE)
    else:
        x = there(older, c, m, SIDE)
    return x


@triton.jit
def begun(
    q, q2, K, K2, tile, T, k_row, E: tl.constexpr, EP: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr, LAG: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """The start of a walk: the products with a tile of keys, for both sets of scores of HyperGLU."""
    newer = scored(q, K, tile, T, k_row, E, EP, SIDE, LAG, VALUES)
    newer2 = newer
    if GLU:
        newer2 = scored(q2, K2, tile, T, k_row, E, EP, SIDE, LAG, VALUES)
    return newer, newer2


@triton.jit
def walked(
    newer, newer2, q, q2, K, K2, c, m, T, k_row, E: tl.constexpr, EP: tl.constexpr, SIDE: tl.constexpr, GLU: tl.constexpr,
    LAG: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Tile m of both sets of scores, and the products for the start of the next tile."""
    older, older2 = begun(q, q2, K, K2, c - m - 1 if LAG else m, T, k_row, E, EP, SIDE, GLU, LAG, VALUES)
    z = tile_of(newer, older, c, m, SIDE, LAG)
    z2 = z
    if GLU:
        z2 = tile_of(newer2, older2, c, m, SIDE, LAG)
    return z, z2, older, older2


@triton.jit
def by_key(x, before, SIDE: tl.constexpr, LAG: tl.constexpr):
    """Tile m of a walk, and the one before it -> keys of tile c - m, or of tile m without lag layout."""
    if LAG:
        x = turned(joined(x, before, SIDE), SIDE, LAG)
    return x


# ---------------------------------------------------------------- the banks
@triton.jit
def lowered(
    x, BANK, m, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, HOW: tl.constexpr
):  # fmt: skip
    """Tile m times the bank: [SIDE, RP]"""
    return product(x, bank_tile(BANK, m, T, R, RP, SIDE), HOW)


@triton.jit
def mixed(
    z, low, UP, DIAGONAL, c, m, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, HOW: tl.constexpr
):  # fmt: skip
    """z (1 + p) + low B, where keys exist. The mixer writes into lags beyond the start, which do not."""
    if UP is not None:
        lags = m * SIDE + tl.arange(0, SIDE)
        kept = 1.0 + tl.load(DIAGONAL + lags, mask=lags < T, other=0.0)
        z = there(z * kept[None, :] + product(low, tl.trans(bank_tile(UP, m, T, R, RP, SIDE)), HOW), c, m, SIDE)
    return z


@triton.jit
def controlled(U, CONTROL, first, T, control_row, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr):
    """Stored sums [T, R] times the token's control, in float32; zero where there is no bank."""
    if CONTROL is None:
        low = tl.zeros([SIDE, RP], tl.float32)
    else:
        low = rows(U, first, T, R, R, R == RP, RP, SIDE)
        low *= rows(CONTROL, first, T, control_row, R, R == RP, RP, SIDE).to(tl.float32)
    return low


# ---------------------------------------------------------------- the activation
@triton.jit
def softplus_and_slope(x, ACCURATE: tl.constexpr):
    """log(1 + exp x) and the sigmoid of x. The interpreter does not know the GPU's own logarithm."""
    t = tl.exp(-tl.abs(x))
    more = 1.0 + t
    if ACCURATE:  # log(1 + t) for a small t
        log = tl.log(more)
        log = tl.where(more == 1.0, t, log * (t / tl.where(more == 1.0, 1.0, more - 1.0)))
        slope = 1.0 / more
    elif INTERPRETED:
        log, slope = tl.log(more), 1.0 / more
    else:
        log, slope = libdevice.fast_logf(more), libdevice.fast_dividef(1.0, more)
    return tl.maximum(x, 0.0) + log, tl.where(x >= 0, slope, t * slope)
