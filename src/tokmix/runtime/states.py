"""Decoding states of many texts as rows of numpy arrays: rows join and leave between steps.

A growing leaf, such as attention's cache, has a slot per token in dimension 1. Slots from a row's position on are undefined, so
rows of unequal length stand in one array, padded at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokmix.core.optional import np

State = list[np.ndarray]


@dataclass(frozen=True)
class StateSpec:
    """One array of a state. shape is without the batch; of a growing one the first size is 0."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    grows: bool


def empty(specs: Sequence[StateSpec], batch: int) -> State:
    """The state of this many texts before their first token."""
    return [np.zeros((batch, *spec.shape), dtype=spec.dtype) for spec in specs]


def take(state: State, rows: Sequence[int]) -> State:
    index = np.asarray(rows, dtype=np.int64)
    return [leaf[index] for leaf in state]


def join(specs: Sequence[StateSpec], parts: Sequence[State]) -> State:
    """The rows of all parts in one state."""
    if len(parts) == 1:
        return list(parts[0])
    joined = []
    for spec, *leaves in zip(specs, *parts, strict=True):
        if spec.grows:
            slots = max(leaf.shape[1] for leaf in leaves)
            leaves = [_widened(leaf, slots) for leaf in leaves]
        joined.append(np.concatenate(leaves))
    return joined


def _widened(leaf: np.ndarray, slots: int) -> np.ndarray:
    return np.pad(leaf, [(0, 0), (0, slots - leaf.shape[1]), *[(0, 0)] * (leaf.ndim - 2)])


def trim(specs: Sequence[StateSpec], state: State) -> State:
    """Without the slots that no row has reached, because a cache gains one slot in every step."""
    if not any(spec.grows for spec in specs):
        return state
    position = state[[spec.name for spec in specs].index("position")]
    slots = int(position.max()) if len(position) else 0
    return [leaf[:, :slots] if spec.grows else leaf for spec, leaf in zip(specs, state, strict=True)]
