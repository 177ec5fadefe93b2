"""What all our Hugging Face models share: the tokmix.Model inside, and loading that never leaves a weight to chance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from tokmix.core.block import LAYOUTS
from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.hf import cache, inputs
from tokmix.hf.config import TokmixConfig

HEAD = "core.head."
_WHERE = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class TokmixPreTrainedModel(PreTrainedModel):
    config: TokmixConfig
    config_class = TokmixConfig
    base_model_prefix = "core"
    heads: ClassVar[tuple[str, ...]] = ("none",)
    accepts_loss_kwargs = True  # Trainer hands us num_items_in_batch
    _is_stateful = True  # a state cannot be rolled back, which assisted generation would need
    _no_split_modules = [layout.__name__ for layout in LAYOUTS.values()]

    def __init__(self, config: TokmixConfig):
        super().__init__(config.with_head(self.head_for(config)))
        self.core = Model(self.config.core())
        if not self.core.embedding.weight.is_meta:
            for module in self.core.modules():  # the core has drawn its weights already; nothing is to be drawn again
                module._is_hf_initialized = True  # type: ignore[assignment]
        self.post_init()

    @classmethod
    def head_for(cls, config: TokmixConfig) -> str:
        """The class decides; with several heads to choose from, the config does."""
        return config.head if config.head in cls.heads else cls.heads[0]

    def _init_weights(self, module: nn.Module) -> None:
        """Of what a folder lacks or a new vocabulary adds: as the core would draw it."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.core.config.embedding_std)
        elif module is self.core.head and isinstance(module, nn.Linear):
            module.reset_parameters()

    def _run(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        segment_ids: Tensor | None,
        segments: Segments | None,
        past: Cache | None = None,
        use_cache: bool | None = None,
    ) -> tuple[Any, Segments | None, Cache | None]:
        """-> (what the core gives, the segments used, the cache where one was given or asked for)"""
        for name in ("output_hidden_states", "output_attentions"):
            if getattr(self.config, name, False):
                raise ValueError(f"this model gives no {name.removeprefix('output_')}: leave {name}=True out of its config")
        if past is None and use_cache:
            past = DynamicCache(config=self.config)
        if past is None:
            segments = inputs.read_segments(ids, attention_mask, position_ids, segment_ids, segments)
            return self.core(ids, segments), segments, None
        segments = inputs.step_segments(ids, attention_mask, position_ids, segment_ids=segment_ids, segments=segments)
        return cache.step(self.core, ids, segments, past), segments, past

    def get_input_embeddings(self) -> nn.Module:
        return self.core.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.core.embedding = value

    def get_output_embeddings(self) -> nn.Module | None:
        """None where the embedding itself is the output matrix."""
        return self.core.head if self.core.config.head in ("lm", "mlm") and isinstance(self.core.head, nn.Linear) else None

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.core.head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.core.config = replace(self.core.config, vocab=embedding.num_embeddings)
        return embedding

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As the parent's; but a folder that lacks weights, holds others, or is damaged is an error, and a model loaded
        with another head than it was saved with computes the same hidden states."""
        path = pretrained_model_name_or_path
        kwargs.setdefault("use_safetensors", True)  # no pickles
        saved = None if path is None else TokmixConfig.from_pretrained(path, **{key: kwargs[key] for key in _WHERE if key in kwargs})
        with _one_line(path):
            loaded: Any = super().from_pretrained(path, *args, output_loading_info=True, **{**kwargs, "ignore_mismatched_sizes": True})
        model, info = loaded
        new_head = saved is None or saved.head != model.config.head
        _check(path, info, new_head, new_head or kwargs.get("ignore_mismatched_sizes", False))
        if saved is not None and saved.embedding_std != model.config.embedding_std:
            with torch.no_grad():
                model.core.embedding.weight.mul_(model.config.embedding_std / saved.embedding_std)
        return (model, info) if output_loading_info else model


@contextmanager
def _one_line(path: Any) -> Iterator[None]:
    """Errors about a folder of ours as one line that names it; those about names on the hub are left as they are."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if path is None or not os.path.isdir(path):
            raise
        raise ValueError(f"model folder {str(path)!r} cannot be loaded: {' '.join(str(error).split())}") from error


def _check(path: Any, info: dict[str, Any], new_head: bool, new_shape: bool) -> None:
    """A weight that is missing or of another shape would be left to chance, one too many would be dropped; only a head
    may be new, or of another shape."""
    shapes = {name: f"{name} of shape {list(found)} for {list(wanted)}" for name, found, wanted in info["mismatched_keys"]}
    for what, names, free in (
        ("lacks weights", {name: name for name in info["missing_keys"]}, new_head),
        ("holds weights of another model", {name: name for name in info["unexpected_keys"]}, new_head),
        ("holds weights of another shape", shapes, new_shape),
    ):
        wrong = [names[name] for name in sorted(names) if not (free and name.startswith(HEAD))]
        if wrong:
            shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            raise ValueError(f"model folder {str(path)!r} {what}: {shown}")
