"""Linear attention that reads both ways: one kernel where nothing is differentiated and device, dtype and shape allow; else plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.dispatch import use_triton
from tokmix.ops.linear_attention import op, reference

WIDEST = 64  # channels of a head whose sums fit the registers of a program
LONGEST = 2048  # tokens that one program may read by itself


def read(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None = None) -> Tensor:
    """q, k, v [B, H, L, e] before the feature map; real [B, L] bool: tokens that are read (None = all) -> [B, H, L, e]"""
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    alike = q.dtype == k.dtype == v.dtype and q.shape == k.shape == v.shape and q.numel() > 0
    fits = alike and q.shape[3] <= WIDEST and q.shape[2] <= LONGEST and all(x.stride(3) == 1 for x in (q, k, v))
    real = real if real is None else real.expand(q.shape[0], -1)
    if not differentiated and use_triton(q, q.dtype, fits):
        return op.forward.entry(q, k, v)(q, k, v, real)
    k = reference.features(k)
    if real is not None:
        k = torch.where(real[:, None, :, None], k, 0)
    return reference.bidirectional(reference.features(q), k, v)
