"""What the kernels of HyperMLP share: a tile of scores, by key or by lag, and the banks' products with it.

A tile holds SIDE queries and as many keys: query c SIDE + a, key g SIDE + b. Turned to lags, column l of row a holds the
key b = (a - l) mod SIDE, whose lag is

    (c - g) SIDE + l          where l <= a ("near")
    (c - g - 1) SIDE + l      where l > a

so that a row is rotated, the banks' rows of two neighbouring tiles of lags serve it, and on the diagonal (c = g) exactly
the near half exists. The same rotation turns lags back into keys. Without lag layout nothing is turned, and one tile of
the banks, by key, serves it.
"""

from __future__ import annotations

import triton
import triton.language as tl


# ---------------------------------------------------------------- products
@triton.jit
def rounded(x, HOW: tl.constexpr, WIDEN: tl.constexpr):
    """x as a factor of a product. The interpreter multiplies bit patterns and cuts bits off instead of rounding, so there
    bfloat16 is rounded by hand and stays wide. Tensor cores cut tf32 off, which makes every factor too small: so that, too."""
    if HOW == "bf16":
        if WIDEN:
            bits = x.to(tl.float32).to(tl.int32, bitcast=True)
            x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        else:
            x = x.to(tl.bfloat16)
    elif HOW == "fp16":
        x = x.to(tl.float16)
    elif HOW == "tf32":
        x = ((x.to(tl.float32).to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    else:
        x = x.to(tl.float32)
    return x


@triton.jit
def product(x, y, HOW: tl.constexpr, WIDEN: tl.constexpr):
    """x y, summed in float32; HOW: what the factors are rounded to. bf16x3: two numbers stand for each, 16 bits in all, for
    what decides a sign. A score rounded to 8 bits turns too many of them."""
    if HOW == "bf16x3":
        x_near, y_near = x.to(tl.bfloat16).to(tl.float32), y.to(tl.bfloat16).to(tl.float32)
        near, far = rounded(x_near, "bf16", WIDEN), rounded(x - x_near, "bf16", WIDEN)
        high, low = rounded(y_near, "bf16", WIDEN), rounded(y - y_near, "bf16", WIDEN)
        return tl.dot(near, high, tl.dot(near, low, tl.dot(far, high)))
    PRECISION: tl.constexpr = HOW if HOW != "bf16" and HOW != "fp16" else "tf32"  # of no meaning for 16-bit numbers
    return tl.dot(rounded(x, HOW, WIDEN), rounded(y, HOW, WIDEN), input_precision=PRECISION)


# ---------------------------------------------------------------- access
@triton.jit
def start(X, at, heads, batch_stride, head_stride):
    """Where a sequence's head of a [B, H, T, n] tensor begins; at counts sequences and heads together."""
    return X + (at // heads).to(tl.int64) * batch_stride + (at % heads).to(tl.int64) * head_stride


@triton.jit
def rows(X, first, T, row_stride, width, EVEN: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr):
    """[SIDE, COLS]: rows from first on; zero beyond T and width. EVEN: no column is beyond."""
    r, cols = first + tl.arange(0, SIDE), tl.arange(0, COLS)
    inside = (r < T)[:, None]
    if not EVEN:
        inside = inside & (cols < width)[None, :]
    return tl.load(X + r[:, None] * row_stride + cols[None, :], mask=inside, other=0.0)


@triton.jit
def put_rows(X, x, first, T, row_stride, width, EVEN: tl.constexpr, COLS: tl.constexpr, SIDE: tl.constexpr):
    r, cols = first + tl.arange(0, SIDE), tl.arange(0, COLS)
    inside = (r < T)[:, None]
    if not EVEN:
        inside = inside & (cols < width)[None, :]
    tl.store(X + r[:, None] * row_stride + cols[None, :], x.to(X.dtype.element_ty), mask=inside)


@triton.jit
def numbers(X, first, T, SIDE: tl.constexpr):
    """[SIDE, 1] of a vector; zero beyond T."""
    r = first + tl.arange(0, SIDE)
    return tl.load(X + r, mask=r < T, other=0.0)[:, None]


@triton.jit
def tile_at(X, g, SIDE: tl.constexpr):
    """Pointers to a tile in scratch memory."""
    inside = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    return X + g * (SIDE * SIDE) + inside


@triton.jit
def bank_tile(X, tile, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr):
    """[SIDE, RP] of a head's bank [T, R]; zero before lag 0 and beyond T."""
    r, cols = tile * SIDE + tl.arange(0, SIDE), tl.arange(0, RP)
    there = ((r >= 0) & (r < T))[:, None] & (cols < R)[None, :]
    return tl.load(X + r[:, None] * R + cols[None, :], mask=there, other=0.0)


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
def there(x, c, g, SIDE: tl.constexpr):
    """Zero where a key comes after its query."""
    return tl.where((g < c) | near_half(SIDE), x, 0.0)


@triton.jit
def lowered(
    low, x, before, BANK, c, g, T,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr, HOW: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """low [SIDE, RP] plus tiles by lag times the bank, for keys from the newest tile to the oldest: x and the near half of the
    one before it make a whole tile of lags. The last near half is left to `lowered_last`."""
    if LAG:
        x = tl.where(near_half(SIDE), before, x)
    return low + product(x, bank_tile(BANK, c - g - 1 if LAG else g, T, R, RP, SIDE), HOW, WIDEN)


@triton.jit
def lowered_last(
    low, before, BANK, tile, T,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr, HOW: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    if LAG:
        low += product(tl.where(near_half(SIDE), before, 0.0), bank_tile(BANK, tile, T, R, RP, SIDE), HOW, WIDEN)
    return low


@triton.jit
def raised(
    low, BANK, c, g, T, R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr, HOW: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """[SIDE, RP] times the bank's transpose: a tile [SIDE, SIDE] by lag."""
    tile = product(low, tl.trans(bank_tile(BANK, c - g if LAG else g, T, R, RP, SIDE)), HOW, WIDEN)
    if LAG:
        before = tl.trans(bank_tile(BANK, c - g - 1, T, R, RP, SIDE))
        tile = tl.where(near_half(SIDE), tile, product(low, before, HOW, WIDEN))
    return tile


@triton.jit
def kept(DIAGONAL, c, g, T, SIDE: tl.constexpr, LAG: tl.constexpr):
    """1 + p for a tile by lag."""
    cols = tl.arange(0, SIDE)
    own = (c - g if LAG else g) * SIDE + cols
    p = tl.load(DIAGONAL + own, mask=own < T, other=0.0)[None, :]
    if LAG:
        before = own - SIDE
        p = tl.where(near_half(SIDE), p, tl.load(DIAGONAL + before, mask=before >= 0, other=0.0)[None, :])
    return 1.0 + p


# ---------------------------------------------------------------- the activation
@triton.jit
def softplus(x, ACCURATE: tl.constexpr):
    t = tl.exp(-tl.abs(x))
    more = 1.0 + t
    log = tl.log(more)
    if ACCURATE:  # log(1 + t) for a small t
        log = tl.where(more == 1.0, t, log * (t / tl.where(more == 1.0, 1.0, more - 1.0)))
    return tl.maximum(x, 0.0) + log


@triton.jit
def scores(q, k, c, g, SIDE: tl.constexpr, LAG: tl.constexpr, VALUES: tl.constexpr, WIDEN: tl.constexpr):
    """q · k by lag, zero where a key comes after its query. Of do and v: the gradient of the weights."""
    return there(turned(product(q, tl.trans(k), VALUES, WIDEN), SIDE, LAG), c, g, SIDE)


@triton.jit
def mixed(
    z, low, UP, DIAGONAL, c, g, T,
    R: tl.constexpr, RP: tl.constexpr, SIDE: tl.constexpr, LAG: tl.constexpr, HOW: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """z (1 + p) + low B by lag, where keys exist. The mixer writes into lags beyond the start, which do not."""
    if UP is not None:
        z = there(z * kept(DIAGONAL, c, g, T, SIDE, LAG) + raised(low, UP, c, g, T, R, RP, SIDE, LAG, HOW, WIDEN), c, g, SIDE)
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
