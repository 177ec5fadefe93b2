"""Kernels of the decayed count of tokens, n_t = λ_t n_{t-1} + 1, and of its gradient.

Steps x -> x + loss x + added, with loss = λ - 1, are put together by a scan over blocks of tokens.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def then(loss1, added1, loss2, added2):
    """x -> x + loss x + added, one after the other."""
    return loss1 + loss2 + loss1 * loss2, added1 + added1 * loss2 + added2


@triton.jit(do_not_specialize=["L", "heads"])
def counts(LOSS, REAL, FIRST, COUNTS, L, heads, BLOCK: tl.constexpr):
    """n_t = λ_t n_{t-1} + 1, or n_{t-1} at padding."""
    at = tl.program_id(0)
    n = tl.load(FIRST + at)
    for begin in range(0, L, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        there = tokens < L
        one = there.to(tl.float32)
        if REAL is not None:
            one = tl.load(REAL + (at // heads).to(tl.int64) * L + tokens, mask=there, other=0).to(tl.float32)
        loss, added = tl.associative_scan((tl.load(LOSS + at.to(tl.int64) * L + tokens, mask=there, other=0.0), one), 0, then)
        found = n + n * loss + added
        tl.store(COUNTS + at.to(tl.int64) * L + tokens, found, mask=there)
        n = tl.sum(tl.where(tokens == begin + BLOCK - 1, found, 0.0), 0)


@triton.jit(do_not_specialize=["L"])
def counts_backward(LOSS, FIRST, COUNTS, D, DLOG, DFIRST, L, BLOCK: tl.constexpr):
    """a_t = d_t + λ_{t+1} a_{t+1} from the last token to the first; dlog λ_t = λ_t n_{t-1} a_t."""
    at = tl.program_id(0)
    flat = at.to(tl.int64) * L
    a = 0.0
    for begin in range(0, L, BLOCK):
        tokens = L - 1 - begin - tl.arange(0, BLOCK)
        there = tokens >= 0
        later = tl.load(LOSS + flat + tokens + 1, mask=there & (tokens + 1 < L), other=0.0)
        d = tl.load(D + flat + tokens, mask=there, other=0.0)
        loss, added = tl.associative_scan((later, d), 0, then)
        found = a + a * loss + added
        before = tl.load(COUNTS + flat + tokens - 1, mask=tokens > 0, other=0.0)
        before = tl.where(tokens == 0, tl.load(FIRST + at), before)
        own = 1.0 + tl.load(LOSS + flat + tokens, mask=there, other=0.0)
        tl.store(DLOG + flat + tokens, own * before * found, mask=there)
        a = tl.sum(tl.where(tokens == L - begin - BLOCK, found, 0.0), 0)
        tl.store(DFIRST + at + tokens * 0, own * found, mask=tokens == 0)
