"""Linear attention in plain torch (Katharopoulos et al. 2020), feature map elu + 1.

y_t = φ(q_t) Σ φ(k_s)ᵀ v_s / φ(q_t) · Σ φ(k_s)      causal: s <= t, in chunks, with the sums carried along
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.fast_call import Context, unwatched

CHUNK = 64


class Carry(NamedTuple):
    outer: Tensor  # Σ φ(k)ᵀ v [B, H, e, e]
    total: Tensor  # Σ φ(k) [B, H, e]


def features(x: Tensor) -> Tensor:
    """elu + 1"""
    if unwatched((x,)):
        return _Features.apply(x)  # type: ignore[no-any-return, no-untyped-call]
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # compiled graphs get the strides of elu's own gradient wrong


class _Features(torch.autograd.Function):
    """elu + 1 in few passes. Only the result is kept: the slope is 1 above 0 and equals the result below."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(x.clamp(min=0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy * ctx.saved_tensors[0].clamp(max=1)


def bidirectional(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k after the feature map (k zero at padding), all [B, H, L, e]."""
    k = k * k.shape[2] ** -0.5  # cancels in the division; without it, sums over a thousand tokens overflow float16
    q = q.contiguous()  # read by two products, which would copy it each time
    outer, total = k.transpose(-1, -2) @ v, k.sum(2)
    return (q @ outer) / _denominator((q * total[:, :, None]).sum(-1, keepdim=True))


def causal(q: Tensor, k: Tensor, v: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
    """As above, each token reading itself and what came before; sums are kept in the carry's dtype."""
    L, dtype = q.shape[2], carry.outer.dtype
    # An export with dynamic length has one chunk: quadratic, but independent of the number of chunks.
    chunk = L if isinstance(L, torch.SymInt) else min(CHUNK, L)
    pad = -L % chunk
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if pad:  # padding by zero would copy, and compiled graphs of dynamic length get the strides of that copy wrong
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    # Contiguous: several products read each one and would copy it each time.
    q, k, v = (x.contiguous().unflatten(2, (-1, chunk)) for x in (q, k, v))  # [B, H, chunks, C, e]
    outer = torch.cat([carry.outer[:, :, None], k.transpose(-1, -2) @ v], dim=2).cumsum(2)  # before each chunk, and after the last
    total = torch.cat([carry.total[:, :, None], k.sum(3)], dim=2).cumsum(2)
    scores = (q @ k.transpose(-1, -2)).tril()
    below = scores.sum(-1, keepdim=True) + (q * total[:, :, :-1, None]).sum(-1, keepdim=True)
    y = ((scores @ v + q @ outer[:, :, :-1]) / _denominator(below)).flatten(2, 3)[:, :, :L]
    return y, Carry(outer[:, :, -1], total[:, :, -1])


def _denominator(below: Tensor) -> Tensor:
    """Positive for any real token. Without one, it and the numerator are zero."""
    return below.clamp(min=torch.finfo(below.dtype).tiny)


def matmul_flops(length: int, heads: int, e: int, is_causal: bool) -> int:
    if not is_causal:
        return 4 * heads * length * e * e
    chunk = min(CHUNK, length)
    padded = length + -length % chunk
    return heads * padded * (4 * e * e + 4 * chunk * e)
