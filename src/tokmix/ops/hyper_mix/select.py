"""HyperMixing of the tokens of a sequence with each other: the fastest exact implementation for device, dtype and shape."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.token_offsets import Chunks
from tokmix.ops.dispatch import ANY_GPU, H100, HAS_TRITON, autocast_dtype, forced, use_triton
from tokmix.ops.hyper_mix import cached, op, reassociated, reference, short_op, wide_op
from tokmix.ops.hyper_mix.reference import Net
from tokmix.ops.sizes import DEEPEST

SHORTEST = 32  # below this length most of a kernel's tile would be empty
NARROWEST = 128  # from this width of a head on, the large products of `wide` pay for their copies; a single head needs no copies
SHORT = 128  # tokens of the longest sequence whose hidden state `short` keeps on chip
SHORT_WIDE = 64  # the same for float32 with one head: each product takes three there, and more heads lose too many digits
SHORT_PAYS = 2.0  # `short` runs if the textbook form takes at most this many times the operations of the re-associated form
WIDEST_NORM = 8192  # channels one program can hold
# `wide` runs if it takes at most this many times the textbook form's operations: it moves far fewer bytes.
WIDE_PAYS = 1.5


class Body(Enum):
    """How HyperMixing is computed."""

    NARROW_HEADS = "narrow heads"  # kernels that keep a head's matrices on chip
    SHORT_SEQUENCES = "short sequences"  # kernels that keep a sequence's hidden state on chip
    WIDE_HEADS = "wide heads"  # large products with kernels between them
    REASSOCIATED = "re-associated"  # plain torch, few operations for long sequences
    TEXTBOOK = "textbook"  # plain torch, as the paper writes it

    @property
    def takes_chunks(self) -> bool:
        """Whether it reads a padded or packed batch directly; the others take whole rows."""
        return self in (Body.NARROW_HEADS, Body.SHORT_SEQUENCES)

    def matmul_flops(self, queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int | None = None) -> int:
        form = reference if self in (Body.SHORT_SEQUENCES, Body.TEXTBOOK) else reassociated
        return form.matmul_flops(queries, keys, heads, e, k, shared, inner)


class Norm(NamedTuple):
    """LayerNorm over the full width."""

    gain: Tensor
    bias: Tensor
    eps: float


def select_body(x: Tensor, net: Net, *, tied: bool, normed: bool, longest: int | None = None) -> Body:
    """The body for x [B, T, D]. tied: one net for both generated matrices; normed: a norm follows; longest: tokens of the longest
    sequence, T where None."""
    length = x.shape[1] if longest is None else longest
    if _on_gpu(x):
        if _has_heads(x, net, length):
            return Body.NARROW_HEADS
        if is_short(x, net, length):
            return Body.SHORT_SEQUENCES
        if _is_wide(x, net, tied, normed):
            return Body.WIDE_HEADS
    return _in_torch(x, x, net, tied)


def _in_torch(queries: Tensor, keys: Tensor, net: Net, shared: bool) -> Body:
    """The form with fewer operations. An export with dynamic length has one form for all lengths, the textbook's."""
    heads, inner, k = net.outer.shape
    lengths = (queries.shape[1], keys.shape[1])
    if any(isinstance(length, torch.SymInt) for length in lengths):
        return Body.TEXTBOOK
    pays = reassociated.pays(*lengths, heads, net.inner.shape[1], k, shared, inner, gpu=queries.is_cuda)
    return Body.REASSOCIATED if pays else Body.TEXTBOOK


def expected(length: int, heads: int, e: int, k: int, tied: bool, inner: int, gpu: bool) -> Body:
    """The body that `select_body` chooses for this length if no kernel for narrow heads fits; for estimates of cost."""
    sizes = (length, length, heads, e, k, tied, inner)
    if gpu and HAS_TRITON and _short_pays(length, heads, e, k, inner):
        return Body.SHORT_SEQUENCES
    if reassociated.pays(*sizes, gpu=gpu):
        return Body.REASSOCIATED
    return Body.WIDE_HEADS if gpu and HAS_TRITON and _wide_pays(*sizes) else Body.TEXTBOOK


def _has_heads(x: Tensor, net: Net, longest: int) -> bool:
    """Whether the kernels for narrow heads run, the first choice from SHORTEST tokens on."""
    (_, e, inner), dtype = net.inner.shape, _dtype(x, net)
    wide = dtype == torch.float32
    # A head's matrices stay on chip.
    fits = x.numel() > 0 and longest >= SHORTEST and inner == e and e <= (64 if wide else 128)
    # Only half precision and heads of up to 64 are known to be faster than plain torch; the rest runs on request only.
    proven = e <= 64 and not wide
    return use_triton(x, dtype, fits=fits and (proven or forced() == "triton"), needs=ANY_GPU if e <= 64 else H100)


def is_short(x: Tensor, net: Net, longest: int) -> bool:
    """Whether sequences are so short that their hidden states should stay on chip."""
    if not _on_gpu(x):
        return False
    (heads, e, inner), k = net.inner.shape, net.outer.shape[2]
    dtype = _dtype(x, net)
    wide = dtype == torch.float32
    fits = x.numel() > 0 and 0 < longest <= SHORT and x.shape[2] <= WIDEST_NORM and not (wide and heads > 1)
    pays = forced() == "triton" or (_short_pays(longest, heads, e, k, inner) and not (wide and longest > SHORT_WIDE))
    return use_triton(x, dtype, fits=fits and pays, needs=H100 if wide and longest > SHORT_WIDE else ANY_GPU)


def _on_gpu(x: Tensor) -> bool:
    """Whether kernels run, decided before sizes are read: an export of any length must not read them needlessly."""
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
    body: Body | None = None,
) -> Tensor:
    """x [B, T, D] -> readout * W2 · GELU(scale * W1ᵀ x), then the norm.

    net_out               None: tied
    tokens                what the nets see; x where None
    scale, readout        a number for each sequence, [S] or [1]
    chunks, longest, real where sequences stand, how long the longest is, where tokens are [B, T], for a body that takes chunks. The
                          result is zero outside of them. Without these every row is one whole sequence.
    body                  the result of `select_body`, which is called here where None
    """
    tied = net_out is None or net_out is net_in
    if body is None:
        body = select_body(x, net_in, tied=tied, normed=norm is not None, longest=longest)
    if chunks is not None and not body.takes_chunks:
        raise ValueError(f"HyperMixing by {body.value} takes whole rows, not chunks: ask `select_body` first")
    gain, bias, eps = (None, None, 0.0) if norm is None else norm
    if body is Body.SHORT_SEQUENCES:
        dtype = _dtype(x, net_in)
        w_in, w_out = _generate_both(x if tokens is None else tokens, dtype, net_in, None if tied else net_out, chunks, real)
        table, full = (None, True) if chunks is None else (chunks.table, chunks.full)
        most = x.shape[1] if longest is None else longest
        given = (x.to(dtype), w_in, w_out, scale, readout, gain, bias)
        return short_op.forward.entry(*given)(*given, eps, table, most, full)[0]
    if body in (Body.NARROW_HEADS, Body.WIDE_HEADS):
        dtype = _dtype(x, net_in)
        seen, values = (x, None) if tokens is None else (tokens, x.to(dtype))
        second = (None, None, None, None) if tied or net_out is None else net_out
        nets = (seen.to(dtype), values, *net_in, *second, scale, readout, gain, bias)
        if body is Body.WIDE_HEADS:
            return wide_op.forward.entry(*nets)(*nets, eps)[0]
        table, first, size, full = (None, None, 0, True) if chunks is None else chunks
        return op.forward.entry(*nets)(*nets, eps, table, first, size, full)[0]
    tokens, net_out = x if tokens is None else tokens, net_in if net_out is None else net_out
    y = _plain(body, tokens, tokens, x, net_in, net_out, None if scale is None else scale[:, None, None, None])
    y = y if readout is None else y * readout[:, None, None].to(y.dtype)
    return y if norm is None else F.layer_norm(y, y.shape[-1:], norm.gain, norm.bias, norm.eps)


def hyper_mix(queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None = None) -> Tensor:
    """The reference's result in plain torch, by the form with fewer operations."""
    body = _in_torch(queries, keys, net_in, net_out is net_in and queries is keys)
    return _plain(body, queries, keys, values, net_in, net_out, scale)


def _plain(body: Body, queries: Tensor, keys: Tensor, values: Tensor, net_in: Net, net_out: Net, scale: Tensor | None) -> Tensor:
    if body is Body.REASSOCIATED:
        return reassociated.hyper_mix(queries, keys, values, net_in, net_out, scale)
    if any(isinstance(x.shape[1], torch.SymInt) for x in (queries, keys)):
        return reference.exported(queries, keys, values, net_in, net_out, scale)
    w_in, w_out = reference.generate_both(queries, keys, net_in, net_out)
    values = reference.split_heads(values, w_in.shape[1])
    few = forced() != "reference" and cached.pays(w_in, values)
    return reference.merge_heads((cached if few else reference).mix(w_in, w_out, values, scale))


def matmul_flops(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int, gpu: bool) -> int:
    """FLOPs of self-mixing (queries == keys) without a kernel for narrow heads."""
    return expected(keys, heads, e, k, shared, inner, gpu).matmul_flops(queries, keys, heads, e, k, shared, inner)


def _wide_pays(queries: int, keys: int, heads: int, e: int, k: int, shared: bool, inner: int) -> bool:
    sizes = (queries, keys, heads, e, k, shared, inner)
    return (heads == 1 or e >= NARROWEST) and reassociated.matmul_flops(*sizes) <= WIDE_PAYS * reference.matmul_flops(*sizes)


def _is_wide(x: Tensor, net_in: Net, tied: bool, normed: bool) -> bool:
    """Whether large products with kernels between them are the body for x [B, T, D]."""
    (heads, e, inner), k, T = net_in.inner.shape, net_in.outer.shape[2], x.shape[1]
    # Sequences, in one kernel together with heads, are one axis of a grid.
    fits = x.numel() > 0 and x.shape[0] * heads <= DEEPEST and (not normed or x.shape[2] <= WIDEST_NORM)
    pays = forced() == "triton" or _wide_pays(T, T, heads, e, k, tied, inner)
    return use_triton(x, _dtype(x, net_in), fits=fits and pays)


def _dtype(x: Tensor, net: Net) -> torch.dtype:
    return autocast_dtype(x) or torch.promote_types(x.dtype, net.inner.dtype)


def _generate_both(
    seen: Tensor, dtype: torch.dtype, net_in: Net, net_out: Net | None, chunks: Chunks | None, real: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The generated matrices for the kernels of short sequences, [H, B * T, k]; the second is None where both are the same."""
    seen = seen.to(dtype)
    if chunks is not None and not chunks.full and real is not None:
        # The nets read every row, and 0 times NaN would be NaN in their gradients.
        seen = torch.where(real[:, :, None], seen, 0)
    return _generated(seen, net_in, dtype), None if net_out is None else _generated(seen, net_out, dtype)


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
