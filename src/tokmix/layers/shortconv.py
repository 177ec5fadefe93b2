"""A short causal convolution over tokens, one filter per channel, as HyperMLP puts before its keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tokmix.ops.short_conv import short_conv


class ShortConv(nn.Module):
    """weight [D, K]: the last column multiplies the current token. No bias, no activation, no residual."""

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, kernel) * 0.02)

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """x [B, L, D]; before [B, K - 1, D] holds the tokens that came just before (None = zeros)."""
        return short_conv(x, self.weight, before)
