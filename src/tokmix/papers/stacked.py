"""Models of one shape as one model: K members' weights stacked, their rows one after the other.

    ids [K * B, T] ── embeddings, products, norms: one kernel for all members ──> [K * B, ...]

A small model leaves most of a GPU idle, and its kernels take less time than starting them. No member sees another's rows or weights.
What holds weights in a way of its own is gone through member by member (`Each`), except HyperMixing of short texts, as in most runs.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.block import Layer
from tokmix.layers.hypermixing import HyperMixing, HyperNetwork
from tokmix.mixer import Mixer
from tokmix.model import Model
from tokmix.ops import hyper_mix
from tokmix.ops.hyper_mix import choice, reference, short_library
from tokmix.positions import within
from tokmix.segments import Segments

Place = tuple[nn.Parameter, int | None]  # where a member's parameter stands: in this one, at this index (None: it is all of it)


class Places:
    """Makes the stack's parameters, and remembers where those of the members went."""

    def __init__(self) -> None:
        self.of: dict[nn.Parameter, Place] = {}

    def together(self, parts: Sequence[Tensor | None]) -> nn.Parameter | None:
        """[K, ...]"""
        if parts[0] is None:
            return None
        whole = nn.Parameter(torch.stack([part.detach() for part in parts if part is not None]))
        for place, part in enumerate(parts):
            assert isinstance(part, nn.Parameter)
            self.of[part] = (whole, place)
        return whole

    def apart(self, part: nn.Module) -> nn.Module:
        """A copy of its own."""
        own = copy.deepcopy(part)
        for theirs, ours in zip(part.parameters(), own.parameters(), strict=True):
            self.of[theirs] = (ours, None)
        return own


class Together(Segments):
    """Where the sequences of all members stand, and of each."""

    members: list[Segments]


class Stack(nn.Module):
    """Called with rows of all members, [K * B, T] and so on, and Segments that begin in column 0, it gives what each would."""

    def __init__(self, models: Sequence[nn.Module]):
        super().__init__()
        places = Places()
        self.model, self.count = _whole(models, places), len(models)
        # A member's parameters, in its own order
        self.places: list[list[Place]] = [[places.of[parameter] for parameter in model.parameters()] for model in models]
        self.split = any(isinstance(part, Each) for part in self.modules())

    def forward(self, rows: Tensor, *others: Tensor | Segments | None) -> Tensor:
        given = (self._together(other) if isinstance(other, Segments) and self.split else other for other in others)
        return self.model(rows, *given)

    def _together(self, segments: Segments) -> Segments:
        assert segments.unmoved
        lengths, T = segments.cu_seqlens.diff().long(), segments.mask.shape[1]
        together = Together.__new__(Together)
        together.__dict__.update(segments.__dict__)
        together.members = [Segments.padded(part, T) for part in lengths.chunk(self.count)]
        return together


def alike(model: nn.Module) -> Hashable:
    """The same for models that can be stacked. Dropout may differ."""
    return replace(model.config, dropout=0.0) if type(model) is Model else id(model)


def _whole(models: Sequence[nn.Module], places: Places) -> nn.Module:
    if len(models) == 1:
        return places.apart(models[0])
    try:
        return _stack(models, places)
    except _Apart:
        return Each(models, places)


class _Apart(Exception):
    """Something between layers holds weights of its own."""


def _stack(parts: Sequence[nn.Module], places: Places) -> nn.Module:
    first = parts[0]
    if type(first) in STACKED:
        return STACKED[type(first)](parts, places)
    if isinstance(first, HyperMixing) and not first.causal and first.code.kind != "learned" and first.max_len <= choice.SHORT:
        return HyperMixings(parts, places)  # type: ignore[arg-type]
    if isinstance(first, Mixer) and any(type(part) not in STACKED and (part._parameters or part._buffers) for part in first.modules()):
        return Each(parts, places)
    if first._parameters and isinstance(first, Layer):
        return Each(parts, places)
    if first._parameters or first._buffers:
        raise _Apart
    whole = copy.copy(first)  # the same settings, other parts
    whole._parameters, whole._buffers = {}, {}
    whole._modules = {
        name: child if child is None else _stack([part._modules[name] for part in parts], places)  # type: ignore[misc]
        for name, child in first._modules.items()
    }
    if isinstance(whole, Model) and whole._tied:
        assert isinstance(whole.embedding, Embeddings)
        whole.config, whole.head = replace(whole.config, tie=False), Scores(whole.embedding)
    return whole


class Each(nn.Module):
    """Member by member."""

    def __init__(self, parts: Sequence[nn.Module], places: Places):
        super().__init__()
        self.each = nn.ModuleList(places.apart(part) for part in parts)

    @property
    def limit(self) -> int | None:
        return self.each[0].limit  # type: ignore[return-value]

    @property
    def mixer(self) -> nn.Module:
        """Of a layer."""
        return self.each[0].mixer  # type: ignore[return-value]

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None) -> None:
        return None

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        members = [None] * len(self.each) if segments is None else segments.members  # type: ignore[attr-defined]
        return torch.cat([one(part, own) for one, part, own in zip(self.each, x.chunk(len(self.each)), members, strict=True)])


class Linears(nn.Module):
    def __init__(self, parts: Sequence[nn.Linear], places: Places):
        super().__init__()
        self.weight = places.together([part.weight for part in parts])  # [K, out, in]
        self.bias = places.together([part.bias for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [K * B, ..., in], weight [K, out, in], bias [K, out] -> [K * B, ..., out]"""
    flat = x.reshape(len(weight), -1, x.shape[-1])
    return _Linear.apply(flat, weight, bias).view(*x.shape[:-1], -1)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(torch.autograd.Function):
    """So that the weight's gradient has the weight's own layout: that of bmm with the transposed weight is transposed, and would be
    copied on its way to the optimizer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return products(x, weight.mT, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return torch.bmm(dy, weight), torch.bmm(dy.mT, x), dy.sum(1) if ctx.needs_input_grad[2] else None


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [K, rows, in], weight [K, in, out], bias [K, out]. Not baddbmm, which writes the bias to every row first."""
    y = torch.bmm(x, weight)
    return y if bias is None else y + bias[:, None]


class Norms(nn.Module):
    """LayerNorm or RMSNorm over the last dimension."""

    def __init__(self, parts: Sequence[nn.LayerNorm | nn.RMSNorm], places: Places):
        super().__init__()
        self.size, self.eps, self.centred = list(parts[0].normalized_shape), parts[0].eps, isinstance(parts[0], nn.LayerNorm)
        self.weight = places.together([part.weight for part in parts])
        self.bias = places.together([getattr(part, "bias", None) for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, self.size, eps=self.eps or 0.0) if self.centred else F.rms_norm(x, self.size, eps=self.eps)
        if self.weight is None:
            return y
        y = y.view(len(self.weight), -1, x.shape[-1]) * self.weight[:, None]
        return (y if self.bias is None else y + self.bias[:, None]).view_as(x)


class Embeddings(nn.Module):
    def __init__(self, parts: Sequence[nn.Embedding], places: Places):
        super().__init__()
        self.weight = places.together([part.weight for part in parts])  # [K, vocab, D]

    def forward(self, ids: Tensor) -> Tensor:
        assert self.weight is not None
        K, vocab, D = self.weight.shape
        first = torch.arange(0, K * vocab, vocab, device=ids.device).repeat_interleave(len(ids) // K)
        return F.embedding(ids + first[:, None], self.weight.view(K * vocab, D))


class Scores(nn.Module):
    """The output matrices of tied models: their embeddings."""

    def __init__(self, embeddings: Embeddings):
        super().__init__()
        self.embeddings = [embeddings]  # in a list: its weights are counted where they are

    def forward(self, x: Tensor) -> Tensor:
        weight = self.embeddings[0].weight
        assert weight is not None
        return linear(x, weight)


class Dropouts(nn.Module):
    def __init__(self, parts: Sequence[nn.Dropout], places: Places):
        super().__init__()
        self.rates = [part.p for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        if len(set(self.rates)) == 1:
            return F.dropout(x, self.rates[0], self.training)
        if not self.training:
            return x
        kept = 1 - torch.tensor(self.rates, device=x.device).repeat_interleave(len(x) // len(self.rates))
        kept = kept.view(-1, *[1] * (x.dim() - 1))
        return torch.where(torch.rand_like(x, dtype=torch.float32) < kept, x / kept.to(x.dtype), 0)


class HyperMixings(nn.Module):
    """The nets' products of all members at once; what they generate is mixed by sequence, whoever's it is."""

    def __init__(self, parts: Sequence[HyperMixing], places: Places):
        super().__init__()
        self.one = [parts[0]]  # for its settings; in a list: its weights are none of ours
        self.net_in = Nets([part.net_in for part in parts], places)
        tied = parts[0].net_out is None
        self.net_out = None if tied else Nets([part.net_out for part in parts], places)  # type: ignore[misc]
        normed = parts[0].output_norm is not None
        self.output_norm = Norms([part.output_norm for part in parts], places) if normed else None  # type: ignore[misc]
        self.limit = parts[0].limit

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None) -> None:
        return None

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        one, counts = self.one[0], None if segments is None else segments.cu_seqlens.diff()
        real = None if segments is None else segments.mask[:, :, None]
        seen = x if one.code.kind == "none" else x + one.code(within(segments, x), x.dtype)
        seen = seen if real is None else torch.where(real, seen, 0)
        w_in = self.net_in(seen)
        w_out = None if self.net_out is None else self.net_out(seen)
        y = self._mix(x, w_in, w_out, *one.scales(x, counts), segments)
        y = y if self.output_norm is None else self.output_norm(y)
        return y if real is None else torch.where(real, y, 0)

    def _mix(
        self, x: Tensor, w_in: Tensor, w_out: Tensor | None, scale: Tensor | None, readout: Tensor | None, segments: Segments | None
    ) -> Tensor:
        """w_in, w_out [H, rows, k]"""
        if choice.is_short(x, self.net_in.first(), x.shape[1]):
            table, full = (None, True) if segments is None or segments.chunks is None else (segments.chunks.table, segments.chunks.full)
            return short_library.run(x, w_in, w_out, scale, readout, None, None, 0.0, table, x.shape[1], full)[0]
        H = w_in.shape[0]
        first, second = (w.view(H, *x.shape[:2], -1).transpose(0, 1) for w in (w_in, w_in if w_out is None else w_out))
        values = x if segments is None else torch.where(segments.mask[:, :, None], x, 0)
        factor = None if scale is None else scale[:, None, None, None]
        y = hyper_mix.merge_heads(reference.mix(first, second, hyper_mix.split_heads(values, H), factor))
        return y if readout is None else y * readout[:, None, None].to(y.dtype)


class Nets(nn.Module):
    """Hypernetworks: tokens [K * B, T, D] -> rows of weights [H, K * B * T, k]."""

    def __init__(self, parts: Sequence[HyperNetwork], places: Places):
        super().__init__()
        names = ("inner", "inner_bias", "outer", "outer_bias")
        self.inner, self.inner_bias, self.outer, self.outer_bias = (  # [K, H, ...]
            places.together([getattr(part, name) for part in parts]) for name in names
        )

    def first(self) -> hyper_mix.Net:
        """Of the first member."""
        given = (self.inner, self.inner_bias, self.outer, self.outer_bias)
        return hyper_mix.Net(*(None if weights is None else weights[0] for weights in given))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        assert self.inner is not None and self.outer is not None
        K, H, e, _ = self.inner.shape
        flat = x.reshape(K, -1, H, e).permute(2, 0, 1, 3).flatten(0, 1)  # [H * K, rows of a member, e]
        inner, inner_bias, outer, outer_bias = (
            None if weights is None else weights.transpose(0, 1).flatten(0, 1)
            for weights in (self.inner, self.inner_bias, self.outer, self.outer_bias)
        )
        assert inner is not None and outer is not None
        rows = products(F.gelu(products(flat, inner, inner_bias)), outer, outer_bias)  # [H * K, rows of a member, k]
        return rows.view(H, -1, rows.shape[-1])


STACKED = {
    nn.Linear: Linears, nn.LayerNorm: Norms, nn.RMSNorm: Norms, nn.Embedding: Embeddings, nn.Dropout: Dropouts,
}  # fmt: skip
