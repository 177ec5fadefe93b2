"""The model under audit, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from tokmix.hf.config import TokmixConfig


class NotHere(Exception):
    """A check does not apply to the model."""


@dataclass(frozen=True)
class Run:
    """hidden: after the embedding and after each layer, then the output; [B, T, ...], or [B, ...] for one output a sequence."""

    hidden: list[Tensor]
    cache: Cache | None = None

    def of(self, row: int, at: slice | Tensor) -> list[Tensor]:
        """The tokens of one row; of an output of the whole sequence that itself."""
        width = self.hidden[0].shape[1]
        return [x[row, at] if x.dim() > 2 or (x.dim() == 2 and x.shape[1] == width) else x[row] for x in self.hidden]


class Subject:
    """The model under audit, and how it is called."""

    def __init__(self, model: PreTrainedModel, seed: int):
        self.model, self.config = model, model.config
        self.takes = set(inspect.signature(model.forward).parameters)
        self.own = isinstance(self.config, TokmixConfig)
        decoder = model.can_generate() or getattr(self.config, "is_decoder", False)
        reads_back = any(
            getattr(part, "is_causal", False) is True for part in model.modules()
        )  # of decoders without a head, or with another
        self.causal = self.config.causal if self.own else bool(decoder or reads_back)
        self.pooled = type(model).__name__.endswith("ForSequenceClassification")  # one output a row, nothing for each token
        self.decodes = self.causal and "past_key_values" in self.takes and not self.pooled
        self.generator = torch.Generator().manual_seed(seed)
        self.text = model.main_input_name == "input_ids"
        pad = getattr(self.config, "pad_token_id", None)
        self.pad = pad if isinstance(pad, int) and pad >= 0 else None

    def ids(self, rows: int, length: int) -> Tensor:
        if not self.text:
            raise NotHere("for models of tokens")
        special = {getattr(self.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "cls", "sep")}
        known = [number for number in range(min(self.config.vocab_size, 1000)) if number not in special]
        return torch.tensor(known)[torch.randint(len(known), (rows, length), generator=self.generator)]

    def run(self, ids: Tensor, **given: Tensor | Cache | bool | None) -> Run:
        if self.decodes:
            given.setdefault("use_cache", False)
        name = "pixel_values" if ids.is_floating_point() and not self.text else "inputs_embeds" if ids.is_floating_point() else "input_ids"
        done = self.model(**{name: ids}, output_hidden_states=True, **{key: value for key, value in given.items() if value is not None})
        hidden = done.hidden_states
        if hidden is None:
            raise NotHere("the model gives no hidden states")
        outputs = [done[name] for name in ("logits", "last_hidden_state", "start_logits") if name in done]
        return Run([*hidden, *outputs], done.get("past_key_values"))

    def alone(self, rows: Iterable[Tensor]) -> list[Run]:
        return [self.run(row[None]) for row in rows]

    def positions(self, mask: Tensor) -> Tensor | None:
        """Of a row padded on the left, as generate() gives them."""
        return (mask.cumsum(1) - 1).clamp(min=0) if "position_ids" in self.takes else None
