"""HyperMixing in plain torch, as the paper writes it (Mai et al. 2023, eq. 1-3).

    W1 = net_in(keys) [S, M, d'], W2 = net_out(queries) [S, L, d']      one row of weights per token
    Y  = W2 · GELU(W1ᵀ V)                                               hidden state [S, d', d]

With H heads every width is split into H slices and each head has a hypernetwork of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Net(NamedTuple):
    """A hypernetwork for each of H heads: e -> i -> k, with e = d/H, k = d'/H, and i = e in the paper."""

    inner: Tensor  # [H, e, i], input by output
    inner_bias: Tensor | None  # [H, i]
    outer: Tensor  # [H, i, k]
    outer_bias: Tensor | None  # [H, k]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[S, L, H * e] -> [S, H, L, e]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[S, H, L, e] -> [S, L, H * e]"""
    return x.transpose(1, 2).flatten(2)


def per_head(x: Tensor, weights: Tensor) -> Tensor:
    """x [S, H, L, i] @ weights [H, i, o], as one product a head over all tokens: broadcasting would copy the weights S times, and make
    their gradient for each sequence before it is summed."""
    S, _, L, _ = x.shape
    return torch.bmm(x.transpose(0, 1).flatten(1, 2), weights).unflatten(1, (S, L)).transpose(0, 1)


def generate(x: Tensor, net: Net) -> Tensor:
    """Tokens [S, H, L, e] -> rows of weights [S, H, L, k]."""
    hidden = per_head(x, net.inner)
    if net.inner_bias is not None:
        hidden = hidden + net.inner_bias[:, None]
    rows = per_head(F.gelu(hidden), net.outer)
    return rows if net.outer_bias is None else rows + net.outer_bias[:, None]


def generate_both(queries: Tensor, keys: Tensor, net_in: Net, net_out: Net) -> tuple[Tensor, Tensor]:
    """queries [S, L, d], keys [S, M, d] -> weights [S, H, M, k] that write the hidden state, [S, H, L, k] that read it."""
    heads = net_in.inner.shape[0]
    w_in = generate(split_heads(keys, heads), net_in)
    shared = net_out is net_in and queries is keys
    return w_in, w_in if shared else generate(split_heads(queries, heads), net_out)


def mix(w_in: Tensor, w_out: Tensor, values: Tensor, scale: Tensor | None) -> Tensor:
    """w_in [S, H, M, k], w_out [S, H, L, k], values [S, H, M, e] (zero at padding) -> [S, H, L, e].
    scale [S, 1, 1, 1] multiplies the hidden state."""
    hidden = w_in.transpose(-1, -2) @ values
    if scale is not None:
        hidden = hidden * scale.to(hidden.dtype)
    return w_out @ F.gelu(hidden)


def hyper_mix(queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None = None) -> Tensor:
    """queries [S, L, d], keys and values [S, M, d] -> [S, L, d]. The values are zero at padding, so that padded
    tokens add nothing to the hidden state."""
    w_in, w_out = generate_both(queries, keys, net_in, net_out)
    return merge_heads(mix(w_in, w_out, split_heads(values, w_in.shape[1]), scale))


def exported(queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None) -> Tensor:
    """`hyper_mix` with heads before sequences, [H, S, L, ...]: a graph copies what it transposes, here only the input and the result."""
    heads_first = lambda x: x.unflatten(-1, (net_in.inner.shape[0], -1)).permute(2, 0, 1, 3)
    given = heads_first(values)
    w_in = _exported_rows(given if keys is values else heads_first(keys), net_in)
    w_out = w_in if net_out is net_in and queries is keys else _exported_rows(heads_first(queries), net_out)
    hidden = w_in.transpose(-1, -2) @ given
    if scale is not None:
        hidden = hidden * scale.transpose(0, 1).to(hidden.dtype)
    return (w_out @ F.gelu(hidden)).permute(1, 2, 0, 3).flatten(2)


def _exported_rows(x: Tensor, net: Net) -> Tensor:
    """Tokens [H, S, L, e] -> rows of weights [H, S, L, k]."""
    hidden = x.flatten(1, 2) @ net.inner
    rows = F.gelu(hidden if net.inner_bias is None else hidden + net.inner_bias[:, None]) @ net.outer
    return (rows if net.outer_bias is None else rows + net.outer_bias[:, None]).unflatten(1, x.shape[1:3])


def length_scale(counts: Tensor, e: int, power: float | None) -> Tensor:
    """Factor of a hidden state that is summed over this many tokens. A plain power is counts^-power (the paper's is 1).
    The default keeps the state's scale at 1: the independent parts of n tokens add up to √n, their shared part to n;
    with random weights the shared part is 0.6/e of the independent one."""
    if power is not None:
        return counts.pow(-power)
    return (counts * (1 + 0.6 / e * counts)).rsqrt()


def readout_scale(scale: Tensor, e: int, k: int, own: bool) -> Tensor:
    """Factor of the readout of k units, so that its scale stays near 1 too; scale: of length_scale.
    own: tied weights in self-mixing. A token then reads its own contribution, and the part shared with the others,
    with the same weights that wrote them, so they add up (the constants are fitted to random weights)."""
    excess = 0.75 * (k / e) ** 0.5 + 0.6 * k * scale.square() if own else torch.zeros_like(scale)
    return (k * (1 + excess)).rsqrt()


def matmul_flops(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int | None = None) -> int:
    """e, k and inner (where it is not e): widths within a head."""
    nets, i = keys if shared else keys + queries, e if inner is None else inner
    return heads * (nets * 2 * (e * i + i * k) + (keys + queries) * 2 * e * k)
