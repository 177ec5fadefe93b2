"""Attention maps [B, heads, T, columns so far] for output_attentions, from the mixers that have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.layers.keyvalue import KeyValueMixer


class Maps:
    """What each layer's queries read from each key, by rows as the mixers see them."""

    def __init__(self) -> None:
        self.by_layer: list[Tensor] = []

    def placed(self, segments: Segments | None, mask: Tensor | None, new: int) -> tuple[Tensor, ...]:
        """By columns of the batch. mask [B, N]: the real tokens so far, those in a cache too; None = all. Maps of padding are zero."""
        if segments is None and (mask is None or bool((mask != 0).all())):
            return tuple(self.by_layer)
        if segments is not None and segments.packed:
            raise ValueError("output_attentions has no place for packed sequences; give one sequence a row")
        real = segments.mask if mask is None else mask  # type: ignore[union-attr]
        return tuple(_place(weights, real != 0, new) for weights in self.by_layer)


def _place(weights: Tensor, real: Tensor, new: int) -> Tensor:
    B, H = weights.shape[:2]
    columns = real.shape[1]
    placed = weights.new_zeros(B, H, new, columns)
    for row in range(B):
        at = real[row].nonzero().flatten()  # the column of each token
        queries = at[at >= columns - new] - (columns - new)
        if len(queries):
            placed[row, :, queries[:, None], at] = weights[row, :, : len(queries), : len(at)]
    return placed


@contextmanager
def recorded(core: Model) -> Iterator[Maps]:
    """Inside, a forward pass or a step of the core leaves its maps."""
    mixers = [layer.mixer for layer in core.layers]
    for number, mixer in enumerate(mixers):
        if not isinstance(mixer, KeyValueMixer) or mixer.window is not None:
            raise ValueError(
                f"layer {number} ({mixer.kind}) has no attention map: output_attentions=True is for stacks of attention and relu_attention"
                " without a window"
            )
    maps = Maps()
    for mixer in mixers:
        mixer.read = _recording(mixer, maps)  # type: ignore[method-assign, arg-type, assignment]
    try:
        yield maps
    finally:
        for mixer in mixers:
            del mixer.read


def _recording(mixer: KeyValueMixer, maps: Maps):  # type: ignore[no-untyped-def]
    original = type(mixer).read

    def read(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
        # What is read is linear in the values: reading the unit vectors gives the weights themselves.
        unit = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
        weights = original(mixer, q, k, unit, allowed, causal)
        maps.by_layer.append(weights)
        return weights @ v

    return read
