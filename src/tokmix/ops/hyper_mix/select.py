"""HyperMixing of the tokens of a sequence with each other: the fastest exact body for device, dtype and shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.token_offsets import Chunks
from tokmix.ops.dispatch import ANY_GPU, H100, HAS_TRITON, autocast_dtype, forced, use_triton
from tokmix.ops.hyper_mix import cached, op, reassociated, reference, short_op, wide_op
from tokmix.ops.hyper_mix.reference import Net
from tokmix.ops.sizes import DEEPEST

SHORTEST = 32  # tokens of a sequence below which most of a kernel's tile would be empty
NARROWEST = 128  # channels of a head from which the large products of `wide` are worth their copies; one head needs none
SHORT = 128  # tokens of the longest sequence whose hidden state `short` keeps on chip
SHORT_WIDE = 64  # the same for float32, of one head: three products stand for each there, and more heads lose too many digits
SHORT_PAYS = 2.0  # `short` runs where the textbook takes at most so many times the operations of the re-associated form
WIDEST_NORM = 8192  # channels one program can hold
# `wide` runs wherever it takes at most so many times the textbook's operations: it moves far fewer bytes.
WIDE_PAYS = 1.5


class Norm(NamedTuple):
    """LayerNorm over the full width."""

    gain: Tensor
    bias: Tensor
    eps: float


def has_kernel(x: Tensor, net: Net, longest: int) -> bool:
    """Whether `mix` would run a kernel on x [B, T, D] that takes `chunks`. longest: the longest sequence."""
    return _has_heads(x, net, longest) or is_short(x, net, longest)


def _has_heads(x: Tensor, net: Net, longest: int) -> bool:
    """Whether the kernels for heads run, which are first choice from SHORTEST tokens on."""
    if not _on_gpu(x):
        return False
    (_, e, inner), dtype = net.inner.shape, _dtype(x, net)
    wide = dtype == torch.float32
    # A head's matrices stay on chip.
    fits = x.numel() > 0 and longest >= SHORTEST and inner == e and e <= (64 if wide else 128)
    # Only half precision and heads of up to 64 are known to be faster than plain torch; the rest runs where asked for.
    proven = e <= 64 and not wide
    return use_triton(x, dtype, fits=fits and (proven or forced() == "triton"), needs=ANY_GPU if e <= 64 else H100)


def is_short(x: Tensor, net: Net, longest: int) -> bool:
    """Whether sequences are so short that their hidden states should never leave the chip."""
    if not _on_gpu(x):
        return False
    (heads, e, inner), k = net.inner.shape, net.outer.shape[2]
    dtype = _dtype(x, net)
    wide = dtype == torch.float32
    fits = x.numel() > 0 and 0 < longest <= SHORT and x.shape[2] <= WIDEST_NORM and not (wide and heads > 1)
    pays = forced() == "triton" or (_short_pays(longest, heads, e, k, inner) and not (wide and longest > SHORT_WIDE))
    return use_triton(x, dtype, fits=fits and pays, needs=H100 if wide and longest > SHORT_WIDE else ANY_GPU)


def _on_gpu(x: Tensor) -> bool:
    """Where kernels run, asked before sizes are: those of an export of any length should not be looked at for nothing."""
    return x.device.type == "cuda" or forced() == "triton"


def _short_pays(longest: int, heads: int, e: int, k: int, inner: int) -> bool:
    sizes = (longest, longest, heads, e, k, False, inner)
    return longest <= SHORT and reference.matmul_flops(*sizes) <= SHORT_PAYS * reassociated.matmul_flops(*sizes)


def mix(
    x: Tensor,
    net_in: Net,
    net_out: Net | None = None,
    *,
    tokens: Tensor | None = None,
    scale: Tensor | None = None,
    readout: Tensor | None = None,
    norm: Norm | None = None,
    chunks: Chunks | None = None,
    longest: int | None = None,
    real: Tensor | None = None,
) -> Tensor:
    """x [B, T, D] -> readout * W2 · GELU(scale * W1ᵀ x), then the norm. net_out None: tied. tokens: what the nets see,
    x where None. scale, readout: a number for each sequence, [S] or [1]. chunks, longest, real [B, T]: where sequences
    stand, how long the longest is, where tokens are, for kernels alone; the result is zero outside of them. Without these
    every row is one whole sequence."""
    longest = x.shape[1] if longest is None else longest
    if _has_heads(x, net_in, longest):
        return _kernel(x, net_in, net_out, tokens, scale, readout, norm, chunks)
    if is_short(x, net_in, longest):
        return _short(x, net_in, net_out, tokens, scale, readout, norm, chunks, longest, real)
    assert chunks is None, "ask has_kernel first: everything else takes whole rows"
    if _is_wide(x, net_in, net_out, norm):
        return _wide(x, net_in, net_out, tokens, scale, readout, norm)
    tokens, net_out = x if tokens is None else tokens, net_in if net_out is None else net_out
    y = hyper_mix(tokens, tokens, x, net_in, net_out, None if scale is None else scale[:, None, None, None])
    y = y if readout is None else y * readout[:, None, None].to(y.dtype)
    return y if norm is None else F.layer_norm(y, y.shape[-1:], norm.gain, norm.bias, norm.eps)


def hyper_mix(queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None = None) -> Tensor:
    """The reference's contract in plain torch: textbook or re-associated, whichever takes fewer operations; textbook with short
    sequences on a CPU a few at a time."""
    heads, inner, k = net_in.outer.shape
    shared = net_out is net_in and queries is keys
    sizes = (queries.shape[1], keys.shape[1], heads, net_in.inner.shape[1], k, shared, inner)
    any_length = any(isinstance(length, torch.SymInt) for length in sizes[:2])  # an export: one form for all of them
    if not any_length and reassociated.pays(*sizes, gpu=queries.is_cuda):
        return reassociated.hyper_mix(queries, keys, values, net_in, net_out, scale)
    w_in, w_out = reference.generate_both(queries, keys, net_in, net_out)
    values = reference.split_heads(values, heads)
    body = cached if not any_length and cached.pays(w_in, values) and forced() != "reference" else reference
    return reference.merge_heads(body.mix(w_in, w_out, values, scale))


def matmul_flops(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int, gpu: bool) -> int:
    """Of mixing without a kernel for heads, in the form that it would take."""
    sizes = (queries, keys, heads, e, k, shared, inner)
    if gpu and HAS_TRITON and queries == keys and _short_pays(keys, heads, e, k, inner):
        return reference.matmul_flops(*sizes)
    fewer = reassociated.pays(*sizes, gpu=gpu) or (gpu and HAS_TRITON and _wide_pays(*sizes))
    return (reassociated if fewer else reference).matmul_flops(*sizes)


def _wide_pays(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int) -> bool:
    sizes = (queries, keys, heads, e, k, shared, inner)
    return (heads == 1 or e >= NARROWEST) and reassociated.matmul_flops(*sizes) <= WIDE_PAYS * reference.matmul_flops(*sizes)


def _is_wide(x: Tensor, net_in: Net, net_out: Net | None, norm: Norm | None) -> bool:
    """Whether large products with kernels between them are the body for x [B, T, D]."""
    if not _on_gpu(x):
        return False
    (heads, e, inner), k, T = net_in.inner.shape, net_in.outer.shape[2], x.shape[1]
    tied = net_out is None or net_out is net_in
    # Sequences, and in one kernel their heads, are an axis of a grid.
    fits = x.numel() > 0 and x.shape[0] * heads <= DEEPEST and (norm is None or x.shape[2] <= WIDEST_NORM)
    pays = forced() == "triton" or _wide_pays(T, T, heads, e, k, tied, inner)
    return use_triton(x, _dtype(x, net_in), fits=fits and pays)


def _dtype(x: Tensor, net: Net) -> torch.dtype:
    return autocast_dtype(x) or torch.promote_types(x.dtype, net.inner.dtype)


def _kernel(
    x: Tensor,
    net_in: Net,
    net_out: Net | None,
    tokens: Tensor | None,
    scale: Tensor | None,
    readout: Tensor | None,
    norm: Norm | None,
    chunks: Chunks | None,
) -> Tensor:
    table, first, size, full = (None, None, 0, True) if chunks is None else chunks
    given = _arguments(x, net_in, net_out, tokens, scale, readout, norm)
    return op.run(*given, table, first, size, full)[0]


def _wide(
    x: Tensor, net_in: Net, net_out: Net | None, tokens: Tensor | None, scale: Tensor | None, readout: Tensor | None, norm: Norm | None
) -> Tensor:
    return wide_op.run(*_arguments(x, net_in, net_out, tokens, scale, readout, norm))[0]


def _short(
    x: Tensor,
    net_in: Net,
    net_out: Net | None,
    tokens: Tensor | None,
    scale: Tensor | None,
    readout: Tensor | None,
    norm: Norm | None,
    chunks: Chunks | None,
    longest: int,
    real: Tensor | None,
) -> Tensor:
    dtype, tied = _dtype(x, net_in), net_out is None or net_out is net_in
    table, full = (None, True) if chunks is None else (chunks.table, chunks.full)
    assert chunks is None or chunks.size >= longest, "a sequence is one piece"
    seen = (x if tokens is None else tokens).to(dtype)
    if not full:
        # The nets see every row, and nothing times NaN would be NaN in their gradients.
        assert real is not None
        seen = torch.where(real[:, :, None], seen, 0)
    w_in = _generated(seen, net_in, dtype)
    w_out = None if tied or net_out is None else _generated(seen, net_out, dtype)
    gain, bias, eps = (None, None, 0.0) if norm is None else norm
    return short_op.run(x.to(dtype), w_in, w_out, scale, readout, gain, bias, eps, table, longest, full)[0]


def _generated(x: Tensor, net: Net, dtype: torch.dtype) -> Tensor:
    """[B, T, D] -> rows of weights [H, B * T, k], by one product over all tokens for each layer of the nets: per sequence, as
    the reference writes it, the gradients of the nets' own weights would be made for each sequence and then summed."""
    inner, inner_bias, outer, outer_bias = (None if weights is None else weights.to(dtype) for weights in net)
    assert inner is not None and outer is not None
    flat = x.unflatten(2, (inner.shape[0], -1)).flatten(0, 1).transpose(0, 1)  # [H, B * T, e], not moved
    return _affine(F.gelu(_affine(flat, inner, inner_bias)), outer, outer_bias)


def _affine(x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """x [H, rows, i], weights [H, i, o], bias [H, o]"""
    if x.shape[0] == 1 and bias is not None:
        return torch.addmm(bias[0], x[0], weights[0])[None]
    y = torch.bmm(x, weights)
    return y if bias is None else y + bias[:, None]


def _arguments(
    x: Tensor, net_in: Net, net_out: Net | None, tokens: Tensor | None, scale: Tensor | None, readout: Tensor | None, norm: Norm | None
) -> tuple[Any, ...]:
    """What the ops that take nets begin with."""
    dtype = _dtype(x, net_in)
    seen, values = (x, None) if tokens is None else (tokens, x.to(dtype))
    second = (None, None, None, None) if net_out is None or net_out is net_in else net_out
    gain, bias, eps = (None, None, 0.0) if norm is None else norm
    return seen.to(dtype), values, *net_in, *second, scale, readout, gain, bias, eps
