"""`Model.advance` and the head for one token of one row on a CPU, prepared for many tokens, with few calls of torch in each layer.

Wiring and state are those of the model. Prepared are products with copies of the weights in column order (product.py), position codes
of many tokens at once, and the mixers' own faster steps (`Mixer.prepared_step`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tokmix.core.block import PreparedLayer
from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.offload import is_watched
from tokmix.core.product import is_plain, product, table_product

AT_ONCE = 256  # positions whose codes are computed together


class OneRow:
    def __init__(self, model: Model):
        self.model, self.weight = model, model.embedding.weight
        self.layers = [PreparedLayer(layer) for layer in model.layers]
        tied = isinstance(model.head, nn.Identity)
        self.head = table_product(model.embedding) if tied else product(model.head)
        self.codes = self.weight.new_zeros(0)  # of the positions from `first` on
        self.first = -AT_ONCE

    @staticmethod
    def fits(model: Model) -> bool:
        """Whether the model decodes, on a CPU, and has no hooks."""
        decodes = model.config.head in ("lm", "none") and model.config.causal and not model.training
        return decodes and is_plain(model.embedding.weight) and not any(is_watched(module) for module in model.modules())

    def hidden(self, ids: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """ids [1, 1] -> (normed x [D], new state)."""
        x, after = self._embed(ids, position), []
        for layer, layer_state in zip(self.layers, state["layers"], strict=True):
            x, layer_state = layer(x, layer_state, position)
            after.append(layer_state)
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
        if position - self.first >= len(self.codes):
            self.model.check_room(position + 1)
        return self.codes[position - self.first]
