"""HyperMixing with the generated matrices multiplied away (exact algebra, plain torch, any device).

With H_i = GELU(x U_i + b_i) and W_i = H_i V_i + c_i:

    W_1ᵀ v = V_1ᵀ (H_1ᵀ v) + c_1 (1ᵀ v)          W_2 G = H_2 (V_2 G) + 1 (c_2 G)

so no [L, k] matrix is made, and the cost of a token does not depend on k. This pays if k is much larger than e and the
sequences are not much shorter than k.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.dispatch import autocast_dtype, without_autocast
from tokmix.ops.hyper_mix.reference import Net, merge_heads, per_head, split_heads
from tokmix.ops.hyper_mix.reference import matmul_flops as textbook_flops


def hyper_mix(queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None = None) -> Tensor:
    """As the reference: queries [S, L, d], keys and values [S, M, d] (values zero at padding) -> [S, L, d]."""
    heads = net_in.inner.shape[0]
    values = split_heads(values, heads)
    h_in = _features(split_heads(keys, heads), net_in)  # [S, H, M, e]
    shared = net_out is net_in and queries is keys
    h_out = h_in if shared else _features(split_heads(queries, heads), net_out)
    hidden = _hidden(h_in, values, net_in)
    if scale is not None:
        hidden = hidden * scale.to(hidden.dtype)
    active = F.gelu(hidden).to(h_out.dtype)
    y = h_out @ _times(net_out.outer, active)
    if net_out.outer_bias is not None:
        y = y + (net_out.outer_bias[:, :, None] * active).sum(2, keepdim=True)
    return merge_heads(y)


def _hidden(h: Tensor, values: Tensor, net: Net) -> Tensor:
    """h [S, H, M, i], values [S, H, M, e] -> W_1ᵀ v [S, H, k, e], in float32 if dtype would lose digits."""
    outer, outer_bias = net.outer, net.outer_bias
    if not loses_digits(h.shape[2], values.shape[3], autocast_dtype(h) or h.dtype):
        hidden = _times(outer.mT, h.mT @ values)
        return hidden if outer_bias is None else hidden + outer_bias[:, :, None] * values.sum(2, keepdim=True)
    with without_autocast(h):
        wide = Net(net.inner, None, outer.float(), None if outer_bias is None else outer_bias.float())
        return _hidden(h.float(), values.float(), wide)


def _times(weights: Tensor, x: Tensor) -> Tensor:
    """weights [H, i, j], x [S, H, j, e] -> [S, H, i, e], as one product a head: broadcasting would copy the weights S times."""
    S, _, _, e = x.shape
    return (weights @ x.permute(1, 2, 0, 3).flatten(2)).unflatten(2, (S, e)).permute(2, 0, 1, 3)


def _features(x: Tensor, net: Net) -> Tensor:
    hidden = per_head(x, net.inner)
    return F.gelu(hidden if net.inner_bias is None else hidden + net.inner_bias[:, None])


def loses_digits(length: int, e: int, dtype: torch.dtype) -> bool:
    """Whether rounding H_1ᵀ v to dtype would lose too many digits. The shared part of the sum grows with n, the informative part with √n,
    and the rounding error with the shared part. For long sequences the error shifts the bend of GELU(W_1ᵀ v). The textbook form rounds
    each token's weights separately, which averages out."""
    return dtype in (torch.bfloat16, torch.float16) and length >= 8 * e


def matmul_flops(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int | None = None) -> int:
    """e, k and inner (where it is not e): widths within a head."""
    nets, i = keys if shared else keys + queries, e if inner is None else inner
    return heads * (2 * e * i * (nets + keys + queries) + 4 * e * i * k)


def pays(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int | None = None, gpu: bool = False) -> bool:
    """Whether it takes fewer operations than the reference. Untied, for long sequences: k > e / 2; tied: k > 2 e / 3.
    A GPU needs clearly fewer, because many small products and sums cost more there than on a CPU."""
    sizes = (queries, keys, heads, e, k, shared, inner)
    return matmul_flops(*sizes) < (0.6 if gpu else 1.0) * textbook_flops(*sizes)
