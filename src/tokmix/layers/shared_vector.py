"""The "shared weight-vector" ablation of the HyperMixer paper: generated weights that do not depend on the input.

One learned vector, copied for every token, replaces each generated matrix, so all tokens of a sequence get
the same output.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.mixer import GELU, NORM, Cost, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows


@register("shared_vector")
class SharedVector(RowMixer):
    """hidden: size of the vectors (default: 2 dim). norm: of the output, layer or none; length: the sum over tokens by
    the root of their number."""

    modes = frozenset({"bidirectional", "padded", "packed"})
    order = "T"

    def __init__(
        self,
        dim: int,
        *,
        causal: bool,
        max_len: int,
        layer: int = 0,
        hidden: int | None = None,
        norm: Literal["none", "layer", "length"] = "layer",
    ):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.hidden = 2 * dim if hidden is None else hidden
        checks.at_least("hidden", self.hidden, 1)
        self.norm = norm
        self.w_in = nn.Parameter(torch.empty(self.hidden).normal_(std=3**-0.5))
        self.w_out = nn.Parameter(torch.empty(self.hidden).normal_(std=self.hidden**-0.5))
        self.output_norm = nn.LayerNorm(dim) if norm == "layer" else None

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        total = x.sum(1)  # [S, D]; zero behind a row's end
        if self.norm == "length":
            count = x.shape[1] if rows is None else rows.lengths.clamp(min=1)[:, None].to(x.dtype)
            total = total * count**-0.5
        hidden = F.gelu(self.w_in[:, None] * total[:, None, :])  # [S, d', D]
        y = (self.w_out[None] @ hidden).squeeze(1)  # [S, D]
        if self.output_norm is not None:
            y = self.output_norm(y)
        return y[:, None].expand(x.shape)

    def cost(self, length: int) -> Cost:
        readout = 2 * self.hidden * self.dim
        pointwise = length * self.dim + (GELU + 1) * self.hidden * self.dim + NORM * self.dim * (self.output_norm is not None)
        return Cost(readout, pointwise, 0)
