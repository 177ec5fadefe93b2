"""A model's next token of one row on a CPU, prepared for many of them: `Model.advance` and the head with few calls of torch a layer.

Wiring and state are the model's own. What is prepared: products by copies of the weights in column order (product.py), position codes
of many tokens at once, and each mixer's own short way (`Mixer.prepared_step`), where it has one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tokmix.core.block import PreparedLayer
from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.offload import is_watched
from tokmix.core.product import product, table_product

AT_ONCE = 256  # positions that get their codes together


class OneRow:
    def __init__(self, model: Model):
        self.model, self.weight = model, model.embedding.weight
        self.layers = [PreparedLayer(layer) for layer in model.layers]
        tied = isinstance(model.head, nn.Identity)
        self.head = table_product(model.embedding) if tied else product(model.head)
        self.codes: Tensor | float = 0.0  # of the positions from `first` on
        self.first = -AT_ONCE

    @staticmethod
    def fits(model: Model) -> bool:
        """A model that decodes and has no hooks."""
        decodes = model.config.head in ("lm", "none") and model.config.causal and not model.training
        weight = model.embedding.weight
        plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
        return decodes and plain and not any(is_watched(module) for module in model.modules())

    def hidden(self, ids: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """ids [1, 1] -> (normed x [D], new state)."""
        x, after = self._embed(ids, position), []
        for layer, before in zip(self.layers, state["layers"], strict=True):
            x, now = layer(x, before, position)
            after.append(now)
        return self.model.norm(x), {"position": state["position"] + 1, "layers": after}

    def logits(self, x: Tensor) -> Tensor:
        """x [D] -> [1, vocab]"""
        return self.model.finish(x[None]) if self.head is None else self.head(x)[None]

    def _embed(self, ids: Tensor, position: int) -> Tensor:
        token = int(ids)
        if not 0 <= token < self.weight.shape[0]:
            self.model.embedding_of(ids)  # raises
        return torch.add(self._code(position), self.weight[token], alpha=self.model.embedding_scale)

    def _code(self, position: int) -> Tensor:
        if not self.first <= position < self.first + AT_ONCE:
            self.model.check_room(position + 1)
            config = self.model.config
            last = min(position + AT_ONCE, config.max_len) if config.positions == "learned" else position + AT_ONCE
            codes = self.model.position_code(torch.arange(position, last), self.weight.dtype)
            self.first, self.codes = position, codes if isinstance(codes, Tensor) else self.weight.new_zeros(1, 1).expand(AT_ONCE, -1)
        assert isinstance(self.codes, Tensor)
        if position - self.first >= len(self.codes):
            self.model.check_room(position + 1)
        return self.codes[position - self.first]
