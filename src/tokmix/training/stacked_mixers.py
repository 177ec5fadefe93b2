"""Mixers of K members at once, for those that hold weights in a way of their own.

Weights along the sequence, [K, T, ...], meet tokens side by side: one product a member, not one a row.

    x [K * B, T, D] ──by_token──> [K, T, B * D] ──product of each member──> [K, T, B * D] ──by_row──> [K * B, T, D]

Both turns are copies, which become part of the pointwise work around them when a layer is compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.mixer import Mixer
from tokmix.core.positions import within
from tokmix.core.segments import Segments
from tokmix.layers.gmlp import GMLP
from tokmix.layers.hypermixing import HyperMixing, HyperNetwork
from tokmix.layers.mlp_mixer import MLPMixer
from tokmix.layers.shared_vector import SharedVector
from tokmix.ops import hyper_mix
from tokmix.ops.hyper_mix import reference, select, short_op
from tokmix.training.stacked_parts import Linears, Norms, Places, products


class Mixers(nn.Module, ABC):
    """A subclass writes `mix`; x is zero at padding, and so is what comes out, whatever `mix` leaves there."""

    @classmethod
    def takes(cls, one: Any) -> bool:
        """Whether there is a way for all at once."""
        return not one.causal

    def __init__(self, parts: Sequence[Mixer]):
        super().__init__()
        self.limit = parts[0].limit

    @abstractmethod
    def mix(self, x: Tensor, segments: Segments | None) -> Tensor:
        """[K * B, T, D], each row one sequence from column 0 on"""

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None) -> None:
        return None

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        if segments is None:
            return self.mix(x, None)
        real = segments.mask[:, :, None]
        return torch.where(real, self.mix(torch.where(real, x, 0), segments), 0)


def by_token(x: Tensor, K: int) -> Tensor:
    """[K * B, T, D] -> [K, T, B * D]"""
    return x.unflatten(0, (K, -1)).transpose(1, 2).flatten(2)


def by_row(y: Tensor, D: int, segments: Segments | None) -> Tensor:
    """[K, T, B * D] -> [K * B, T, D], zero at padding."""
    if segments is not None:
        # Before the turn: a compiled backward pass then writes what comes back by token once, not for each product that reads it.
        y = torch.where(by_token(segments.mask[:, :, None].expand(-1, -1, D), len(y)), y, 0)
    return y.unflatten(2, (-1, D)).transpose(1, 2).flatten(0, 1)


class _Gathered(torch.autograd.Function):
    """weightᵀ x, weight [K, T, units], x [K, T, columns] -> [K, units, columns]. As stacked_parts' linear: so that the weight's
    gradient has the weight's own layout."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(weight, x)
        return torch.bmm(weight.mT, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        weight, x = ctx.saved_tensors
        return torch.bmm(x, dy.mT), torch.bmm(weight, dy)


class MLPMixers(Mixers):
    def __init__(self, parts: Sequence[MLPMixer], places: Places):
        super().__init__(parts)
        self.inner, self.inner_bias, self.outer, self.outer_bias = (  # [K, T, hidden], [K, hidden], [K, T, hidden], [K, T]
            places.together([getattr(part, name) for part in parts]) for name in ("inner", "inner_bias", "outer", "outer_bias")
        )

    def mix(self, x: Tensor, segments: Segments | None) -> Tensor:
        K, T = len(self.inner), x.shape[1]
        hidden = _Gathered.apply(self.inner[:, :T], by_token(x, K))  # type: ignore[no-untyped-call]
        y = torch.bmm(self.outer[:, :T], F.gelu(hidden + self.inner_bias[:, :, None]))
        return by_row(y + self.outer_bias[:, :T, None], x.shape[2], segments)


class GMLPs(Mixers):
    def __init__(self, parts: Sequence[GMLP], places: Places):
        super().__init__(parts)
        self.inner, self.outer = Linears([part.inner for part in parts], places), Linears([part.outer for part in parts], places)
        self.norm = Norms([part.norm for part in parts], places)
        self.spatial = places.together([part.spatial for part in parts])  # [K, T, T]
        self.spatial_bias = places.together([part.spatial_bias for part in parts])

    def mix(self, x: Tensor, segments: Segments | None) -> Tensor:
        K, T = len(self.spatial), x.shape[1]
        kept, mixed = F.gelu(self.inner(x)).chunk(2, dim=-1)
        mixed = self.norm(mixed)
        if segments is not None:  # biases have left their mark on padding
            mixed = torch.where(segments.mask[:, :, None], mixed, 0)
        gate = torch.bmm(self.spatial[:, :T, :T], by_token(mixed, K)) + self.spatial_bias[:, :T, None]
        return self.outer(kept * by_row(gate, kept.shape[2], segments))  # type: ignore[no-any-return]


class SharedVectors(Mixers):
    def __init__(self, parts: Sequence[SharedVector], places: Places):
        super().__init__(parts)
        self.by_length = parts[0].norm == "length"
        self.w_in, self.w_out = (places.together([getattr(part, name) for part in parts]) for name in ("w_in", "w_out"))  # [K, hidden]
        normed = parts[0].output_norm is not None
        self.output_norm = Norms([part.output_norm for part in parts], places) if normed else None  # type: ignore[misc]

    def mix(self, x: Tensor, segments: Segments | None) -> Tensor:
        total = x.sum(1)  # [K * B, D]
        if self.by_length:
            count = x.shape[1] if segments is None else segments.cu_seqlens.diff().clamp(min=1)[:, None].to(x.dtype)
            total = total * count**-0.5
        hidden = F.gelu(self.w_in[:, :, None] * total.view(len(self.w_in), 1, -1))  # [K, hidden, B * D]
        # Not a product, which would need `hidden` in memory: compiled, it is made and added up in one kernel.
        y = (self.w_out[:, :, None] * hidden).sum(1).view_as(total)
        y = y if self.output_norm is None else self.output_norm(y)
        return y[:, None].expand(x.shape)


class HyperMixings(Mixers):
    """The nets' products of all members at once; what they generate is mixed by sequence, whoever's it is."""

    @classmethod
    def takes(cls, one: HyperMixing) -> bool:
        return not one.causal and not one.shift and one.code.kind != "learned" and one.max_len <= select.SHORT

    def __init__(self, parts: Sequence[HyperMixing], places: Places):
        super().__init__(parts)
        self.one = [parts[0]]  # for its settings; in a list: its weights are none of ours
        self.net_in = Nets([part.net_in for part in parts], places)
        tied = parts[0].net_out is None
        self.net_out = None if tied else Nets([part.net_out for part in parts], places)  # type: ignore[misc]
        normed = parts[0].output_norm is not None
        self.output_norm = Norms([part.output_norm for part in parts], places) if normed else None  # type: ignore[misc]

    def mix(self, x: Tensor, segments: Segments | None) -> Tensor:
        one, counts = self.one[0], None if segments is None else segments.cu_seqlens.diff()
        seen = x if one.code.kind == "none" else x + one.code(within(segments, x), x.dtype)
        w_in = self.net_in(seen)
        w_out = None if self.net_out is None else self.net_out(seen)
        y = self._mix(x, w_in, w_out, *one.scales(x, counts), segments)
        return y if self.output_norm is None else self.output_norm(y)

    def _mix(
        self, x: Tensor, w_in: Tensor, w_out: Tensor | None, scale: Tensor | None, readout: Tensor | None, segments: Segments | None
    ) -> Tensor:
        """w_in, w_out [H, rows, k]"""
        if select.is_short(x, self.net_in.first(), x.shape[1]):
            table, full = (None, True) if segments is None or segments.chunks is None else (segments.chunks.table, segments.chunks.full)
            given = (x, w_in, w_out, scale, readout, None, None)
            return short_op.forward.entry(*given)(*given, 0.0, table, x.shape[1], full)[0]
        H = w_in.shape[0]
        first, second = (w.view(H, *x.shape[:2], -1).transpose(0, 1) for w in (w_in, w_in if w_out is None else w_out))
        factor = None if scale is None else scale[:, None, None, None]
        y = hyper_mix.merge_heads(reference.mix(first, second, hyper_mix.split_heads(x, H), factor))
        return y if readout is None else y * readout[:, None, None].to(y.dtype)


class Nets(nn.Module):
    """Hypernetworks: tokens [K * B, T, D] -> rows of weights [H, K * B * T, k]."""

    def __init__(self, parts: Sequence[HyperNetwork], places: Places):
        super().__init__()
        self.inner, self.outer = (places.together([getattr(part, name) for part in parts]) for name in ("inner", "outer"))  # [K, H, ...]
        self.inner_bias, self.outer_bias = (
            places.optional([getattr(part, name) for part in parts]) for name in ("inner_bias", "outer_bias")
        )

    def first(self) -> hyper_mix.Net:
        """Of the first member."""
        given = (self.inner, self.inner_bias, self.outer, self.outer_bias)
        return hyper_mix.Net(*(None if weights is None else weights[0] for weights in given))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        K, H, e, _ = self.inner.shape
        flat = x.reshape(K, -1, H, e).permute(2, 0, 1, 3).flatten(0, 1)  # [H * K, rows of a member, e]
        inner, inner_bias, outer, outer_bias = (
            None if weights is None else weights.transpose(0, 1).flatten(0, 1)
            for weights in (self.inner, self.inner_bias, self.outer, self.outer_bias)
        )
        assert inner is not None and outer is not None
        rows = products(F.gelu(products(flat, inner, inner_bias)), outer, outer_bias)  # [H * K, rows of a member, k]
        return rows.view(H, -1, rows.shape[-1])


MIXERS: dict[type[nn.Module], Any] = {
    HyperMixing: HyperMixings, MLPMixer: MLPMixers, GMLP: GMLPs, SharedVector: SharedVectors,
}  # fmt: skip
