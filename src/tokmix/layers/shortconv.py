"""A short causal convolution over tokens, one filter per channel, as HyperMLP puts before its keys and values."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tokmix.ops.short_conv import short_conv

Init = Literal["delta", "normal"]


class ShortConv(nn.Module):
    """weight [D, K]: the last column multiplies the current token. No bias, no activation, no residual.

    init  delta starts as the identity; normal draws small weights (std 0.02), so that the output starts near zero
    """

    def __init__(self, dim: int, kernel: int, init: Init):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, kernel))
        if init == "delta":
            nn.init.ones_(self.weight[:, -1])
        else:
            nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """x [B, L, D]; before [B, K - 1, D] holds the tokens that came just before (None = zeros)."""
        return short_conv(x, self.weight, before)
