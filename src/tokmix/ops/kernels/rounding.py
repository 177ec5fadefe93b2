"""Rounding inside kernels. On a GPU each of these functions is a cast.

Triton's interpreter truncates float32 to bfloat16 instead of rounding, which biases sums over many tokens, and it multiplies bit
patterns. There these functions round by hand."""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops import dispatch

INTERPRETED = tl.constexpr(dispatch.INTERPRETED)


@triton.jit
def nearest(x, KIND: tl.constexpr):
    """x in KIND."""
    if INTERPRETED and tl.bfloat16 == KIND:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    return x.to(KIND)


@triton.jit
def operand(x, KIND: tl.constexpr):
    """x as a factor of a product: rounded to KIND."""
    x = nearest(x, KIND)
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def store_rounded(at, x, there):
    """Stores x at the pointers `at`, in their type, where `there` says so."""
    tl.store(at, nearest(x, at.dtype.element_ty), mask=there)
