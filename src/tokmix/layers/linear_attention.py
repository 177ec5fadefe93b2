"""Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020): the linear-time baseline."""

from __future__ import annotations

from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import Cost, State, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.ops import linear_attention as op
from tokmix.ops.hyper_mix import merge_heads, split_heads


@register("linear_attention")
class LinearAttention(RowMixer):
    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T"

    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, heads: int = 4, bias: bool = True):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        checks.divides("heads", heads, "dim", dim)
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=bias) for _ in range(4))

    def _project(self, x: Tensor, rows: Rows | None) -> tuple[Tensor, Tensor, Tensor]:
        """[B, H, L, e] each; keys behind a row's end are zero after the feature map too."""
        k = op.features(self.k(x))
        if rows is not None:
            k = rows.zero(k)
        return split_heads(op.features(self.q(x)), self.heads), split_heads(k, self.heads), split_heads(self.v(x), self.heads)

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        if self.causal:
            return self.advance(x, self.empty_state(x.shape[0], x), rows)[0]
        q, k, v = (split_heads(part(x), self.heads) for part in (self.q, self.k, self.v))
        return self.out(merge_heads(op.read(q, k, v, None if rows is None else rows.mask)))

    def empty_state(self, batch: int, like: Tensor) -> State:
        e, wide = self.dim // self.heads, positions.at_least_float32(like.dtype)
        return {
            "outer": like.new_zeros(batch, self.heads, e, e, dtype=wide),
            "total": like.new_zeros(batch, self.heads, e, dtype=wide),
        }

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        y, carry = op.causal(*self._project(x, rows), op.Carry(state["outer"], state["total"]))
        return self.out(merge_heads(y.to(x.dtype))), {"outer": carry.outer, "total": carry.total}

    def cost(self, length: int) -> Cost:
        e = self.dim // self.heads
        matmul = 8 * length * self.dim**2 + op.matmul_flops(length, self.heads, e, self.causal)
        return Cost(matmul, length * self.dim * 8, self.dim * (e + 1) if self.causal else 0)
