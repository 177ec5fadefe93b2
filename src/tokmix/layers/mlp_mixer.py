"""MLP-Mixer's token mixing (Tolstikhin et al. 2021): a static MLP along the sequence, the same for every channel.

Causal (our construction): hidden units belong to positions; a unit of position j reads tokens up to j and feeds
tokens from j on. The masks are applied in every forward pass, so no training step can undo them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import GELU, Cost, State, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.layers import memory


@register("mlp_mixer")
class MLPMixer(RowMixer):
    """hidden: units of the token MLP (default: 2 dim)."""

    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T"  # with a fixed number of hidden units; the weights are as long as max_len

    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, hidden: int | None = None):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.hidden = 2 * dim if hidden is None else hidden
        checks.at_least("hidden", self.hidden, 1)
        self.inner = nn.Parameter(torch.empty(max_len, self.hidden).uniform_(-(max_len**-0.5), max_len**-0.5))
        self.inner_bias = nn.Parameter(torch.zeros(self.hidden))
        self.outer = nn.Parameter(torch.empty(max_len, self.hidden).uniform_(-(self.hidden**-0.5), self.hidden**-0.5))
        self.outer_bias = nn.Parameter(torch.zeros(max_len))

    @property
    def limit(self) -> int:
        return self.max_len

    def _weights(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """What tokens at positions [...] give to the units and take from them, both [..., hidden]; masked when causal."""
        inner, outer = self.inner[at], self.outer[at]
        if not self.causal:
            return inner, outer
        owner = torch.arange(self.hidden, device=at.device) * self.max_len // self.hidden
        return torch.where(at[..., None] <= owner, inner, 0), torch.where(at[..., None] >= owner, outer, 0)

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        L = x.shape[1]
        inner, outer = self._weights(positions.count(L, None, x.device))
        hidden = F.gelu(inner.T @ x + self.inner_bias[:, None])  # [S, hidden, D]
        return outer @ hidden + self.outer_bias[:L, None]

    def empty_state(self, batch: int, like: Tensor) -> State:
        sum_dtype = positions.at_least_float32(like.dtype)
        return {"sums": like.new_zeros(batch, self.hidden, self.dim, dtype=sum_dtype), "position": memory.start(batch, like)}

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        """A unit's sum is complete once its own position has passed, and later tokens add zero to it; so all new
        tokens can be added first and read afterwards."""
        position, counts = state["position"], memory.new_counts(x, rows)
        memory.check_room(self.kind, self.max_len, position, counts)
        at = positions.count(x.shape[1], position, x.device).clamp(max=self.max_len - 1)  # [B, L]
        inner, outer = self._weights(at)  # [B, L, hidden]
        sums = state["sums"] + inner.transpose(1, 2).to(state["sums"].dtype) @ x.to(state["sums"].dtype)
        hidden = F.gelu(sums.to(x.dtype) + self.inner_bias[:, None])
        y = outer @ hidden + self.outer_bias[at][..., None]
        return y, {"sums": sums, "position": position + counts}

    def cost(self, length: int) -> Cost:
        products = 4 * length * self.hidden * self.dim
        return Cost(products, GELU * self.hidden * self.dim, self.hidden * self.dim + 1 if self.causal else 0)
