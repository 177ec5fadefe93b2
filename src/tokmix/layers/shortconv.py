"""A short causal convolution over tokens, one filter per channel, as HyperMLP puts before its keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShortConv(nn.Module):
    """weight [D, K]: the last column multiplies the current token. No bias, no activation, no residual."""

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, kernel) * 0.02)

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """x [B, L, D]; before [B, K - 1, D] holds the tokens that came just before (None = zeros)."""
        L, K = x.shape[1], self.weight.shape[1]
        if before is None:
            before = x.new_zeros(x.shape[0], K - 1, x.shape[2])
        padded = torch.cat([before.to(x.dtype), x], dim=1)
        y = padded[:, :L] * self.weight[:, 0]
        for tap in range(1, K):
            y = y + padded[:, tap : tap + L] * self.weight[:, tap]
        return y
