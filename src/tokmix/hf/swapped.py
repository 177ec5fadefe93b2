"""What stands where attention was in a Hugging Face model: a mixer with the attention module's call, or another way to read q, k and v."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Never

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tokmix.core.adapt import LastMask
from tokmix.core.mixer import Mixer, State
from tokmix.core.offload import with_weights
from tokmix.core.segments import Segments
from tokmix.hf.cache import MixerState
from tokmix.hf.masks import read_borders, read_mask
from tokmix.ops import linear_attention
from tokmix.ops.hyper_mlp import relu_of_normalised

# What a call of attention may give. A mixer follows the first three; it has its own way of telling positions.
GIVEN = {
    "hidden_states", "attention_mask", "past_key_values", "position_ids", "position_embeddings", "kwargs", "encoder_hidden_states",
    "encoder_attention_mask", "output_attentions", "use_cache", "alibi", "is_causal", "head_mask", "layer_past",
    "key_value_states",
}  # fmt: skip


class SwappedState(MixerState):
    """The state of a swapped layer between keys and values of others."""

    _layer_type = "tokmix_swapped"  # transformers looks classes up by it: the parent's is taken
    is_croppable = False

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            self.activate_past_recording()

    def activate_past_recording(self) -> None:
        raise ValueError("a model with swapped layers cannot roll its cache back, which assisted generation needs: generate without it")


class SwappedAttention(nn.Module):
    """A mixer with the call of the attention module whose place it takes, and perhaps a linear map after it (init='values'); it returns no
    attention weights (None)."""

    def __init__(self, mixer: Mixer, old: nn.Module, layer: int, last: LastMask):
        super().__init__()
        self.mixer, self.layer_idx, self.is_causal = mixer, layer, mixer.causal
        self.out: nn.Module = nn.Identity()
        self.__dict__["config"] = config = getattr(old, "config", None)  # what the whole model reads masks by
        self.windowed = getattr(old, "sliding_window", getattr(config, "sliding_window", None)) is not None
        self._call, self._last = inspect.signature(type(old).forward), last
        more = sorted(set(self._call.parameters) - GIVEN - {"self"})
        if getattr(config, "attention_chunk_size", None) is not None:
            raise ValueError(
                f"{type(old).__name__} reads in chunks (attention_chunk_size), which a mixer would not; init='attention' keeps it"
            )
        if more or "hidden_states" not in self._call.parameters or hasattr(old, "LayerNorm") or hasattr(old, "layer_norm"):
            reason = f"is given {', '.join(more)} too" if more else "does more than mix tokens"
            raise ValueError(f"{type(old).__name__} {reason}, which a mixer in its place would lose; init='attention' keeps it")

    def forward(self, *args: object, **kwargs: object) -> tuple[Tensor, None]:
        given = self._call.bind(self, *args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        x: Tensor = given["hidden_states"]
        if others := {"encoder_hidden_states", "key_value_states"} & {name for name, value in given.items() if value is not None}:
            raise ValueError(f"a swapped layer reads its own tokens alone, not {others.pop()}")
        past = given.get("past_key_values", given.get("layer_past")) if self.mixer.causal else None
        slot = None if past is None else self._slot(past)
        segments = self._segments(given, x, slot is None or not slot.is_initialized)
        if slot is None:
            return self.out(self.mixer(x, segments)), None

        def step() -> tuple[Tensor, State]:
            state = slot.state["mixer"] if slot.is_initialized else self.mixer.init_state(x.shape[0], x)
            return self.mixer.step(x, state, segments)

        y, state = with_weights(self.mixer, step)
        slot.put(state, torch.full((x.shape[0],), slot.seen + x.shape[1], device=x.device), x.shape[1])
        return self.out(y), None

    def _segments(self, given: dict[str, object], x: Tensor, first: bool) -> Segments | None:
        mask, ends = given.get("attention_mask"), given.get("cu_seq_lens_q")
        flash = "flash" in str(getattr(self.config, "_attn_implementation", ""))
        if mask is None and first and (flash or ends is not None):  # flash attention is told of packed rows in another way
            return read_borders(given.get("position_ids"), ends, x)
        how = x.shape[1], self.mixer.causal, self.windowed
        return self._last.of(mask, read_mask, *how) if isinstance(mask, Tensor) else read_mask(mask, *how)

    def _slot(self, past: Cache) -> SwappedState:
        if isinstance(past, EncoderDecoderCache):
            past = past.self_attention_cache
        layers = past.layers
        while len(layers) <= self.layer_idx:  # DynamicCache() without a config grows as it is filled
            layers.append(DynamicLayer())
        slot = layers[self.layer_idx]
        if isinstance(slot, SwappedState):
            return slot
        if not isinstance(slot, DynamicLayer) or slot.get_seq_length():
            raise ValueError(f"a swapped layer takes a new DynamicCache, not one of {type(slot).__name__}")
        layers[self.layer_idx] = made = SwappedState()
        return made


def _allowed(module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool | None) -> Tensor | None:
    """Who reads whom, bool and broadcastable to [B, H, Q, K]; None = everybody."""
    _check_mask(module, mask)
    if mask is not None:
        mask = mask[..., : k.shape[2]]
        return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", False)
    if not causal or q.shape[2] == 1:
        return None
    ones = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    return ones.tril(k.shape[2] - q.shape[2])


def _check_mask(module: nn.Module, mask: object) -> None:
    """Flash and flex attention have masks of other shapes, or none at all for packed rows."""
    whole = str(getattr(getattr(module, "whole", None), "_attn_implementation", ""))
    if "flash" in whole or not (mask is None or (isinstance(mask, Tensor) and mask.dim() == 4)):
        raise ValueError(
            f"init='attention' reads masks of sdpa or eager, not of {whole or 'another kind'}: set_attn_implementation('sdpa')"
        )


def read_softmax(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **more: object) -> tuple[Tensor, None]:
    """As attention reads: torch's own."""
    _check_mask(module, mask)
    lost = [name for name in ("softcap", "s_aux") if more.get(name) is not None]
    if lost:
        raise ValueError(f"{type(module).__name__} changes its scores ({', '.join(lost)}), which sdpa does not: keep its own attention")
    return sdpa_attention_forward(module, q, k, v, mask, **more)  # type: ignore[arg-type, return-value]


def _repeated(module: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values for each head of the queries."""
    groups = q.shape[1] // k.shape[1]
    return (k, v) if groups == 1 else (k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1))


def read_relu(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool | None = None, **more: object
) -> tuple[Tensor, None]:
    """As relu_attention reads: ReLU(s / ‖s‖) of the scores s, whatever their scale."""
    k, v = _repeated(module, q, k, v)
    allowed = _allowed(module, q, k, mask, is_causal)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ k.to(wide).transpose(-1, -2)
    if allowed is not None:
        scores = torch.where(allowed, scores, 0)
    return (relu_of_normalised(scores).to(v.dtype) @ v).transpose(1, 2).contiguous(), None


def read_linear(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool | None = None, **more: object
) -> tuple[Tensor, None]:
    """As linear_attention reads, with the features elu + 1; under a mask of which padding is not all, by the products of all pairs."""
    k, v = _repeated(module, q, k, v)
    allowed = _allowed(module, q, k, mask, is_causal)
    real = None if allowed is None else _keys(module, allowed)
    if allowed is None or real is not None:
        return linear_attention.read(q, k, v, real).transpose(1, 2).contiguous(), None
    q, k = linear_attention.features(q), linear_attention.features(k)
    scores = torch.where(allowed, q @ k.transpose(-1, -2), 0)
    y = (scores @ v) / scores.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    return y.to(v.dtype).transpose(1, 2).contiguous(), None


def _keys(module: nn.Module, allowed: Tensor) -> Tensor | None:
    """The keys [B, K] that all queries and heads read; None where these differ."""
    if getattr(module, "is_causal", False) or torch.compiler.is_compiling():  # the latter could not look
        return None
    first = allowed[:, :1, :1]
    return first[:, 0, 0] if bool((allowed == first).all()) else None


READERS: dict[str, Callable[..., tuple[Tensor, None]]] = {
    "attention": read_softmax,
    "relu_attention": read_relu,
    "linear_attention": read_linear,
}
PREFIX = "tokmix_"
for _name, _reader in READERS.items():
    AttentionInterface.register(PREFIX + _name, _reader)
    AttentionMaskInterface.register(PREFIX + _name, sdpa_mask)  # without it a model set to this implementation would have no masks


def refuse_continuous_batching(*args: object, **kwargs: object) -> Never:
    """In place of a method of transformers."""
    raise ValueError(
        "continuous batching deals out keys and values by pages, and a mixer's state has none: use generate() with a padded batch"
    )


def read_by(module: nn.Module, name: str) -> None:
    """Have an attention module of transformers read its q, k and v by one of READERS; its weights, cache and masks stay its own."""
    if "ALL_ATTENTION_FUNCTIONS" not in inspect.unwrap(type(module).forward).__code__.co_names:
        raise ValueError(
            f"{type(module).__name__} reads its q, k and v itself, not through AttentionInterface: init='attention' has no effect"
        )
    module.__dict__["whole"] = module.config
    module.config = copy.copy(module.config)
    module.config._attn_implementation_internal = PREFIX + name  # type: ignore[union-attr]
