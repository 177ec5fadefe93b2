"""The base of all our Hugging Face models: the tokmix.Model inside, and loading that never leaves a weight random."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokmix.core.block import LAYOUTS, Layer
from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.hf import cache, inputs
from tokmix.hf.attentions import recorded
from tokmix.hf.config import TokmixConfig

HEAD = "core.head."
_WHERE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class Others(TypedDict, total=False):
    """Other arguments of a forward pass; shift_labels only for the next token."""

    inputs_embeds: Tensor | None
    output_hidden_states: bool | None
    output_attentions: bool | None
    shift_labels: Tensor | None


class LoadingInfo(TypedDict):
    """Weights that did not fit, as transformers lists them: names, and both shapes if the shape differs."""

    missing_keys: Iterable[str]
    unexpected_keys: Iterable[str]
    mismatched_keys: Iterable[tuple[str, torch.Size, torch.Size]]


class WrongWeights(ValueError, RuntimeError):
    """A folder with missing or unknown weights: our ValueError, and the RuntimeError that scripts of Hugging Face expect."""


def _checkpointed(layout: type[Layer]) -> type[Layer]:
    """The layout as a layer whose activations Hugging Face can have computed again in the backward pass."""
    made = type(layout.__name__, (GradientCheckpointingLayer, layout), {"__module__": __name__, "__doc__": layout.__doc__})
    globals()[layout.__name__] = made  # pickle looks for it here
    return made


CHECKPOINTED = {layout: _checkpointed(layout) for layout in LAYOUTS.values()}


@dataclass(frozen=True)
class Encoded:
    """The core's result for a batch, before the head."""

    x: Tensor  # [B, T, D]
    segments: Segments | None
    past: Cache | None
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...] | None


class TokmixPreTrainedModel(PreTrainedModel):
    config: TokmixConfig
    config_class = TokmixConfig
    base_model_prefix = "core"
    heads: ClassVar[tuple[str, ...]] = ("none",)
    accepts_loss_kwargs = True  # Trainer passes num_items_in_batch
    supports_gradient_checkpointing = True
    _no_split_modules = [layout.__name__ for layout in LAYOUTS.values()]

    def __init__(self, config: TokmixConfig):
        super().__init__(config.with_head(self.head_for(config)))
        self.core = Model(self.config.core())
        for layer in self.core.layers:
            layer.__class__ = CHECKPOINTED[type(layer)]
        if not self.core.embedding.weight.is_meta:
            for module in self.core.modules():  # the core has already drawn its weights
                module._is_hf_initialized = True  # type: ignore[assignment]
        self.post_init()

    @classmethod
    def head_for(cls, config: TokmixConfig) -> str:
        """The class decides; if it has several heads, the config does."""
        return config.head if config.head in cls.heads else cls.heads[0]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise missing weights, or those of a new vocabulary, like the core."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.core.config.embedding_std)
        elif module is self.core.head and isinstance(module, nn.Linear):
            module.reset_parameters()

    def _encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        segment_ids: Tensor | None,
        segments: Segments | None,
        others: Others,
        past: Cache | None = None,
        use_cache: bool | None = None,
    ) -> Encoded:
        """others: other arguments of the forward pass; an unknown one is an error."""
        given = self._given(input_ids, others.pop("inputs_embeds", None))
        hidden = self._wants("output_hidden_states", others)
        wants_maps = self._wants("output_attentions", others)
        inputs.refuse(self.forward, others, ("inputs_embeds", "output_hidden_states", "output_attentions"))
        like = given if given.dim() == 2 else given[..., 0]
        if past is None and self._wants_cache(use_cache):
            past = DynamicCache(config=self.config)
        shown: list[Tensor] | None = [] if hidden else None
        watch = None if shown is None else shown.append
        with recorded(self.core) if wants_maps else nullcontext() as maps:
            if past is not None:
                segments = inputs.step_segments(like, attention_mask, position_ids, segment_ids=segment_ids, segments=segments)
                x = cache.step(self.core, given, segments, past, watch)
            elif attention_mask is not None and torch.compiler.is_exporting():
                x, segments = inputs.traced(self.core, given, attention_mask)
            else:
                segments = inputs.read_segments(like, attention_mask, position_ids, segment_ids, segments)
                x = self.core.hidden(given, segments, watch)
        if shown is not None:
            shown[-1] = x  # as all models of Hugging Face: the last one is after the final norm
        placed = None if maps is None else maps.placed(segments, attention_mask, like.shape[1])
        return Encoded(x, segments, past, None if shown is None else tuple(shown), placed)

    def _given(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        return input_ids if inputs_embeds is None else inputs_embeds  # type: ignore[return-value]

    def _wants(self, name: Literal["output_hidden_states", "output_attentions"], others: Others) -> bool:
        asked = others.pop(name, None)
        return bool(getattr(self.config, name, False) if asked is None else asked)

    def _wants_cache(self, use_cache: bool | None) -> bool:
        """The config decides by default; training has no cache."""
        if use_cache is None:
            return bool(self.config.use_cache) and self.config.causal and not self.training and self.config.head in ("lm", "none")
        return use_cache

    def get_input_embeddings(self) -> nn.Module:
        return self.core.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.core.embedding = value

    def get_output_embeddings(self) -> nn.Module | None:
        """None if the embedding itself is the output matrix."""
        return self.core.head if self.core.config.head in ("lm", "mlm") and isinstance(self.core.head, nn.Linear) else None

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.core.head = new_embeddings

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        embedding = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.core.config = replace(self.core.config, vocab=embedding.num_embeddings)
        return embedding

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As the parent's; but a folder that lacks weights, holds others, or is damaged is an error, unless output_loading_info asks which;
        and a model loaded with another head than it was saved with computes the same hidden states."""
        path = pretrained_model_name_or_path
        kwargs.setdefault("use_safetensors", True)  # no pickles
        saved = None if path is None else TokmixConfig.from_pretrained(path, **{key: kwargs[key] for key in _WHERE if key in kwargs})
        with _one_line(path):
            loaded: Any = super().from_pretrained(path, *args, output_loading_info=True, **{**kwargs, "ignore_mismatched_sizes": True})
        model, info = loaded
        new_head = saved is None or saved.head != model.config.head
        if output_loading_info:
            _draw(model, info["missing_keys"])
        _check(path, info, new_head, bool(kwargs.get("ignore_mismatched_sizes", False)), output_loading_info)
        if saved is not None and saved.embedding_std != model.config.embedding_std:
            with torch.no_grad():
                model.core.embedding.weight.mul_(model.config.embedding_std / saved.embedding_std)
        return (model, info) if output_loading_info else model


@contextmanager
def _one_line(path: str | Path | None) -> Iterator[None]:
    """Errors about a local folder as one line that names it; errors about names on the hub stay unchanged."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if path is None or not os.path.isdir(path) or torch.get_default_device().type == "meta":
            raise
        raise ValueError(f"model folder {str(path)!r} cannot be loaded: {' '.join(str(error).split())}") from error


@torch.no_grad()
def _draw(model: TokmixPreTrainedModel, missing: Iterable[str]) -> None:
    """Draw missing weights as a new model does: transformers leaves parameters of mixers as uninitialised memory."""
    own, lost = model.state_dict(), [name for name in missing if not name.startswith(HEAD)]
    new = type(model)(model.config).state_dict() if lost else {}
    for name in lost:
        own[name].copy_(new[name])


def _check(path: str | Path | None, info: LoadingInfo, new_head: bool, any_shape: bool, told: bool) -> None:
    """A missing weight or one of another shape would stay random, an extra one would be dropped; only a head
    may be new. any_shape: whoever loads it takes weights of another shape for new ones; told: it gets the names of the others."""
    shapes = {name: f"{name} of shape {list(found)} for {list(wanted)}" for name, found, wanted in info["mismatched_keys"]}
    for what, names, free in (
        ("lacks weights", {} if told else {name: name for name in info["missing_keys"]}, new_head),
        ("holds weights of another model", {} if told else {name: name for name in info["unexpected_keys"]}, new_head),
        ("holds weights of another shape", {} if any_shape else shapes, new_head),
    ):
        wrong = [names[name] for name in sorted(names) if not (free and name.startswith(HEAD))]
        if wrong:
            shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            raise WrongWeights(f"model folder {str(path)!r} {what}: {shown}")
