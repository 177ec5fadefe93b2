"""Attention with ReLU of L2-normalised scores in place of the softmax: the baseline of the HyperMLP paper."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core.mixer import Cost, register
from tokmix.layers.keyvalue import KeyValueMixer
from tokmix.layers.shortconv import Init
from tokmix.ops.hyper_mlp import relu_of_normalised


@register("relu_attention")
class ReluAttention(KeyValueMixer):
    """heads, bias, rotary, window, conv, conv_init: as in `attention`. There is no scale of the scores, because the norm removes it."""

    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T^2"

    def __init__(
        self,
        dim: int,
        *,
        causal: bool,
        max_len: int,
        layer: int = 0,
        heads: int = 4,
        bias: bool = True,
        rotary: bool = False,
        window: int | None = None,
        conv: int = 0,
        conv_init: Init = "delta",
    ):
        super().__init__(dim, causal, max_len, layer, heads=heads, bias=bias, rotary=rotary, window=window, conv=conv, conv_init=conv_init)

    def read(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
        dtype = v.dtype
        if dtype.itemsize < 4:  # the norm divides by small numbers, so scores are not rounded before it
            q, k = q.float(), k.float()
        scores = q @ k.transpose(-1, -2)  # [B, H, L, N]
        if causal:
            scores = scores.tril()
        if allowed is not None:
            scores = torch.where(allowed, scores, 0)
        return relu_of_normalised(scores).to(dtype) @ v

    def cost(self, length: int) -> Cost:
        return self._cost(length, 4)  # square, add, divide, cut at zero
