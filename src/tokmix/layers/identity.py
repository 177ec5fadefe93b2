"""No token mixing at all: the "feature mixing only" ablation of the HyperMixer paper."""

from __future__ import annotations

from torch import Tensor

from tokmix.core.mixer import Cost, State, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows


@register("identity")
class Identity(RowMixer):
    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T"

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        return x.clone()

    def empty_state(self, batch: int, like: Tensor) -> State:
        return {}

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        return x.clone(), state

    def cost(self, length: int) -> Cost:
        return Cost()

    def reach(self) -> int:
        return 0
