"""The cache that generate() hands around: each layer holds the state of its mixer, whatever that is.

A Cache of Hugging Face is a list of layers that it reorders, repeats and resets. Ours do so with every tensor of the
mixer's state, which has the batch first; what the tensors mean is the mixer's own business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import Cache
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, CacheLayerMixin

from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.segments import Segments

LAYER_TYPE = "tokmix_mixer"


class MixerState(CacheLayerMixin):
    """The state of one layer's mixer, and the position of each row of the batch."""

    _layer_type = LAYER_TYPE
    supports_early_init = False

    def __init__(self, **unused: Any):
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.state: State = None
        self.seen = 0  # columns so far, padding included
        self.is_initialized = False

    def put(self, mixer: State, position: Tensor, new: int) -> None:
        self.state = {"mixer": mixer, "position": position}
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
        if tokens_to_remove:
            raise ValueError("the state of a mixer cannot be rolled back: it keeps what it needs for the next token alone")

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise ValueError("the state of a mixer is not made of keys and values")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
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
    return {"position": layers[0].state["position"], "layers": [layer.state["mixer"] for layer in layers]}


def write(cache: Cache, state: State, new: int) -> None:
    """The state after `new` more columns."""
    layers: list[Any] = cache.layers
    for layer, mixer in zip(layers, state["layers"], strict=True):
        layer.put(mixer, state["position"], new)


def step(core: Model, ids: Tensor, segments: Segments | None, cache: Cache) -> Tensor:
    """Model.step with the cache as its state: the outputs of the next tokens, ids [B, T]."""
    outputs, state = core.step(ids, read(cache, core, ids.shape[0]), segments)
    write(cache, state, ids.shape[1])
    return outputs
