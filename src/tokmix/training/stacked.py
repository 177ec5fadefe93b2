"""Models of one shape as one model: K members' weights stacked, their rows one after the other.

    ids [K * B, T] ── embeddings, products, norms: one kernel for all members ──> [K * B, ...]

A small model leaves most of a GPU idle, and its kernels take less time than starting them. No member sees another's rows or weights.
What holds weights in a way of its own is gone through member by member (`Each`), except the mixers of stacked_mixers.py.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tokmix.core.block import Layer
from tokmix.core.mixer import Mixer
from tokmix.core.model import Model, ModelConfig
from tokmix.core.segments import Segments
from tokmix.training.stacked_mixers import MIXERS
from tokmix.training.stacked_parts import PARTS, Embeddings, Place, Places, Scores


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
        assert all(other.unmoved for other in others if isinstance(other, Segments))
        given = (self._together(other) if isinstance(other, Segments) and self.split else other for other in others)
        return self.model(rows, *given)

    def _together(self, segments: Segments) -> Segments:
        lengths, T = segments.cu_seqlens.diff().long(), segments.mask.shape[1]
        together = Together.__new__(Together)
        together.__dict__.update(segments.__dict__)
        together.members = [Segments.padded(part, T) for part in lengths.chunk(self.count)]
        return together


def alike(model: nn.Module) -> Hashable:
    """The same for models that can be stacked: of one kind and config. Dropout may differ."""
    config = getattr(model, "config", None)
    return (type(model), replace(config, dropout=0.0)) if isinstance(config, ModelConfig) else id(model)


def _whole(models: Sequence[nn.Module], places: Places) -> nn.Module:
    """One model alone is a copy of it, as others would train it."""
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
    if type(first) in PARTS:
        return PARTS[type(first)](parts, places)
    if type(first) in MIXERS and MIXERS[type(first)].takes(first):
        return MIXERS[type(first)](parts, places)  # type: ignore[no-any-return]
    if isinstance(first, Mixer) and any(type(part) not in PARTS and (part._parameters or part._buffers) for part in first.modules()):
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
