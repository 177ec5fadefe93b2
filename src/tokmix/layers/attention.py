"""Softmax attention (Vaswani et al. 2017): the quadratic baseline, on torch's own fused kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokmix.core import positions
from tokmix.core.mixer import SOFTMAX, Cost, register
from tokmix.core.segments import Rows
from tokmix.layers.keyvalue import KeyValueMixer, visible
from tokmix.layers.shortconv import Init
from tokmix.ops.hyper_mix import merge_heads


def _sound(q: Tensor, allowed: Tensor | None) -> AbstractContextManager[None]:
    """Use plain products under forward-mode differentiation, because torch's other kernels do not support it.

    Do not use cuDNN with a mask and gradients: with 64 keys, or 64 beyond a multiple of 128, its backward pass gives NaN as soon as
    all scores of a row are below -89 (torch 2.11 to 2.13 on Hopper, github.com/pytorch/pytorch/issues/196678)."""
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        return sdpa_kernel(SDPBackend.MATH)
    if allowed is None or not q.is_cuda or not torch.is_grad_enabled():  # inference keeps the fastest
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


@register("attention")
class Attention(KeyValueMixer):
    """heads, bias  as usual
    rotary       rotate queries and keys by their position
    window       see only this many tokens, itself included (both ways if bidirectional)
    conv         causal only: a short convolution of this many tokens before keys and values; 0 = off
    conv_init    delta: the convolutions start as the identity; normal: with small random weights
    scale        of the scores (default: one over the root of the head's width)
    qk_norm      an RMS norm of the queries and the keys of each head
    """

    modes = frozenset({"bidirectional", "causal", "cross", "padded", "packed", "step"})
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
        scale: float | None = None,
        qk_norm: bool = False,
    ):
        super().__init__(
            dim, causal, max_len, layer, heads=heads, bias=bias, rotary=rotary, window=window, conv=conv, conv_init=conv_init,
            qk_norm=qk_norm,
        )  # fmt: skip
        self.scale = scale

    def read(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
        scale = self.scale
        if scale is not None and scale <= 0:  # torch's kernels multiply masked scores, -inf, by the scale
            q, scale = q * scale, 1.0
        with _sound(q, allowed):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal, scale=scale)

    def cross(self, x: Tensor, rows: Rows | None, keys: Tensor, values: Tensor, key_rows: Rows | None) -> Tensor:
        at, key_at = (positions.count(t.shape[1], None, t.device) for t in (x, keys))
        q, k, v = self._project(x, keys, values, at, key_at, None)
        y = self.read(q, k, v, visible(at, keys.shape[1], False, self.window, key_rows), False)
        if key_rows is not None:  # no keys: the result is zero
            y = torch.where((key_rows.lengths > 0)[:, None, None, None], y, 0)
        return self.out(merge_heads(y))

    def cost(self, length: int) -> Cost:
        return self._cost(length, SOFTMAX)
