"""The cache of generate(): each layer holds the state of its mixer, whatever that is.

A Cache of Hugging Face is a list of layers that it reorders, repeats and resets. Ours do so with every tensor of the
mixer's state, which has the batch first; only the mixer knows what the tensors mean.

A state cannot be rolled back by itself. Where assisted generation asks for it (`activate_past_recording`), each layer also keeps
the state at the last point that is certain, and the first layer the ids since then: after a crop the remaining ones are read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import Cache
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, CacheLayerMixin

from tokmix.core.decoding import Decoder
from tokmix.core.mixer import State
from tokmix.core.model import Model, Watch
from tokmix.core.segments import Segments

LAYER_TYPE = "tokmix_mixer"


class MixerState(CacheLayerMixin):
    """The state of one layer's mixer, and the position of each row of the batch."""

    _layer_type = LAYER_TYPE
    supports_early_init = False
    is_croppable = True

    def __init__(self, max_cache_len: int = 0, **unused: object):
        super().__init__()
        self.room = max_cache_len  # of a static cache
        self.reset()

    def reset(self) -> None:
        self.state: State = None
        self.seen = 0  # columns so far, padding included
        self.padded = False  # whether any of them was padding
        self.cropped = self.base_seen = 0
        self.record_past = self.is_initialized = False

    def activate_past_recording(self) -> None:
        """From here on, the cache can be cropped to any later point."""
        if not self.record_past:
            self.record_past, self.base_seen = True, self.seen
            if self.is_initialized:
                self.state |= {"base": tree_map(Tensor.clone, self._own), "since": []}

    @property
    def _own(self) -> State:
        return {"mixer": self.state["mixer"], "position": self.state["position"]}

    def put(self, mixer: State, position: Tensor, new: int, given: list[Tensor] | None = None) -> None:
        """given: ids and mask of the new tokens, where the past is recorded."""
        before = self.state if self.is_initialized else {}
        self.state = {"mixer": mixer, "position": position}
        if self.record_past:
            self.state |= {"base": before.get("base", {}), "since": [*before.get("since", []), *(given or [])]}
        self.batch_size, self.seen, self.is_initialized = position.shape[0], self.seen + new, True

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.is_initialized:
            self.state = tree_map(change, self.state)
            self.batch_size = self.state["position"].shape[0]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda leaf: leaf.index_select(0, beam_idx.to(leaf.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda leaf: leaf.repeat_interleave(repeats, dim=0))

    def offload(self) -> None:
        if self.is_initialized:
            self.device = self.state["position"].device
        self._each(lambda leaf: leaf.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._each(lambda leaf: leaf.to(self.device, non_blocking=True))

    def crop(self, tokens_to_remove: int) -> None:
        """Leave the last tokens out: -3 leaves out three. They are taken back when the next token is read."""
        if not tokens_to_remove or not self.is_initialized:
            return
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}) should be given the number of tokens to leave out as a negative number")
        if not self.record_past:
            raise ValueError("a cache of mixer states can be cropped after activate_past_recording() alone; call it before those tokens")
        if self.seen + tokens_to_remove < self.base_seen:
            raise ValueError(f"crop({tokens_to_remove}) goes back behind column {self.base_seen}, where recording began")
        self.cropped -= tokens_to_remove
        self.seen += tokens_to_remove

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise ValueError("the state of a mixer is not made of keys and values")

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        raise ValueError("the state of a mixer is not made of keys and values")


# A state is no larger than it has to be in either kind of cache.
STATIC_LAYER_TYPE_MAPPING[LAYER_TYPE] = MixerState


def read(cache: Cache, core: Model, batch: int) -> State:
    """The state for Model.step; that before the first token, where the cache is new."""
    layers: list[Any] = cache.layers
    if not layers and cache.layer_class_to_replicate is not None:  # DynamicCache() without a config
        layers.extend(MixerState() for _ in core.layers)
    if len(layers) != len(core.layers) or not all(isinstance(layer, MixerState) for layer in layers):
        raise ValueError("past_key_values was made for another model; make it with DynamicCache(config=model.config)")
    if not layers[0].is_initialized:
        return core.init_state(batch)
    if layers[0].batch_size != batch:
        raise ValueError(f"past_key_values holds {layers[0].batch_size} rows, but input_ids {batch}")
    if layers[0].cropped:
        _roll_back(layers, core, batch)
    return _joined([layer.state for layer in layers])


def _joined(states: list[State]) -> State:
    return {"position": states[0]["position"], "layers": [state["mixer"] for state in states]}


def _roll_back(layers: list[MixerState], core: Model, batch: int) -> None:
    """Read the remaining tokens again from the last certain state; the state after them is the next certain one."""
    bases = [layer.state["base"] for layer in layers]
    state = core.init_state(batch) if not bases[0] else _joined(tree_map(Tensor.clone, bases))
    since, kept = layers[0].state["since"], layers[0].seen - layers[0].base_seen
    if kept:
        ids, mask = (torch.cat(parts, dim=1)[:, :kept] for parts in (since[::2], since[1::2]))
        _, state = core.advance(ids, state, Segments.from_mask(mask))
    for layer, mixer in zip(layers, state["layers"], strict=True):
        layer.state = {"mixer": mixer, "position": state["position"], "since": []}
        layer.state["base"] = tree_map(Tensor.clone, layer._own)
        layer.base_seen, layer.cropped = layer.seen, 0


def write(cache: Cache, state: State, ids: Tensor, segments: Segments | None) -> None:
    """The state after ids [B, T], or vectors [B, T, D]."""
    layers: list[Any] = cache.layers
    given = None
    if layers[0].record_past:
        given = [ids, torch.ones(ids.shape[:2], dtype=torch.bool, device=ids.device) if segments is None else segments.mask]
    for layer, mixer in zip(layers, state["layers"], strict=True):
        layer.put(mixer, state["position"], ids.shape[1], given if layer is layers[0] else None)


_decoders: WeakKeyDictionary[Cache, Decoder] = WeakKeyDictionary()


def step(core: Model, ids: Tensor, segments: Segments | None, cache: Cache, watch: Watch | None = None) -> Tensor:
    """Model.advance with the cache as its state: normed x [B, T, D] of the next tokens, ids [B, T]. Without gradients it is the step
    that `tokmix.generate` takes, and the cache is changed in place, as caches of Hugging Face are."""
    state = read(cache, core, ids.shape[0])
    first: Any = cache.layers[0]
    first.padded = first.padded or segments is not None
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        x, state = core.advance(ids, state, segments, watch=watch)
    else:
        decoder = _decoders.get(cache)
        if decoder is None or decoder.model is not core:
            decoder = _decoders[cache] = Decoder(core, first.room)
        decoder.make_room(first.seen + ids.shape[1])
        x, state = decoder.advance(ids, state, segments, position=None if first.padded else first.seen, watch=watch)
    write(cache, state, ids, segments)
    return x
