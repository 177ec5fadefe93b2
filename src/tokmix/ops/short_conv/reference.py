"""The short convolution in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(x: Tensor, weight: Tensor, before: Tensor | None = None) -> Tensor:
    """y_t = Σ_j w_j ⊙ x_{t-K+1+j}: x [B, L, D], weight [D, K], whose last column multiplies the current token -> [B, L, D].
    before [B, K - 1, D]: the tokens that came just before (None = zeros)."""
    L, K = x.shape[1], weight.shape[1]
    if before is None:
        before = x.new_zeros(x.shape[0], K - 1, x.shape[2])
    padded = torch.cat([before.to(x.dtype), x], dim=1)
    y = padded[:, :L] * weight[:, 0]
    for tap in range(1, K):
        y = y + padded[:, tap : tap + L] * weight[:, tap]
    return y
