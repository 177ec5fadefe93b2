"""gMLP (Liu et al. 2021): half of the channels gate the other half after a static matrix has mixed them over tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import GELU, NORM, Cost, State, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.layers import memory


@register("gmlp")
class GMLP(RowMixer):
    """hidden: the gated width (default: dim). The spatial matrix is [max_len, max_len], lower-triangular when causal."""

    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T^2"
    mixes_channels = True

    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, hidden: int | None = None):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.hidden = dim if hidden is None else hidden
        checks.at_least("hidden", self.hidden, 1)
        self.inner, self.outer = nn.Linear(dim, 2 * self.hidden), nn.Linear(self.hidden, dim)
        self.norm = nn.LayerNorm(self.hidden)
        # The gate starts near one: almost no mixing, as the authors advise for stability.
        self.spatial = nn.Parameter(torch.empty(max_len, max_len).uniform_(-1e-3 / max_len, 1e-3 / max_len))
        self.spatial_bias = nn.Parameter(torch.ones(max_len))

    @property
    def limit(self) -> int:
        return self.max_len

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, mixed = F.gelu(self.inner(x)).chunk(2, dim=-1)
        return kept, self.norm(mixed)

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        L = x.shape[1]
        kept, mixed = self._halves(x)
        if rows is not None:
            mixed = rows.zero(mixed)
        weight = self.spatial[:L, :L]
        gate = (weight.tril() if self.causal else weight) @ mixed + self.spatial_bias[:L, None]
        return self.outer(kept * gate)

    def empty_state(self, batch: int, like: Tensor) -> State:
        return {"mixed": like.new_zeros(batch, 0, self.hidden), "position": memory.start(batch, like)}

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        position, counts = state["position"], memory.new_counts(x, rows)
        memory.check_room(self.kind, self.max_len, position, counts, bound=state["mixed"].shape[1] + x.shape[1])
        kept, mixed = self._halves(x)
        past = memory.append(state["mixed"], mixed, position)
        seen = past[:, : self.max_len]
        at = positions.count(x.shape[1], position, x.device).clamp(max=self.max_len - 1)  # [B, L]
        earlier = torch.arange(seen.shape[1], device=x.device) <= at[..., None]  # [B, L, N]
        weight = torch.where(earlier, self.spatial[at][..., : seen.shape[1]], 0)
        gate = weight @ seen + self.spatial_bias[at][..., None]
        return self.outer(kept * gate), {"mixed": past, "position": position + counts}

    def cost(self, length: int) -> Cost:
        projections, spatial = 6 * length * self.dim * self.hidden, 2 * length**2 * self.hidden
        half = projections + length * (length + 1) * self.hidden if self.causal else None
        pointwise = length * self.hidden * (2 * GELU + NORM + 2)
        return Cost(projections + spatial, pointwise, length * self.hidden + 1 if self.causal else 0, half)
