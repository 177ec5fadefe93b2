"""A model as functions of tensors alone, which torch.export can trace at any batch size and length.

RowGraph   ids [B, T], mask [B, T]            -> outputs [B, classes] or [B], pooled [B, D]   (mlm: pooled alone)
StepGraph  ids [B, T], mask [B, T], states    -> logits after each row's last token [B, vocab], states

pooled is the mean of the last states. Rows begin at column 0 and padding stands behind them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.runtime.states import StateSpec


class RowGraph(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.answers = model.config.head in ("classify", "regress")

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        segments = Segments.traceable(mask)
        x = self.model.hidden(ids, segments)
        kept = mask[..., None]
        pooled = torch.where(kept, x, 0).sum(1) / kept.sum(1).clamp(min=1)
        return (self.model.finish(x, segments), pooled) if self.answers else (pooled,)


class StepGraph(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.model, self.like = model, model.init_state(1)

    def forward(self, ids: Tensor, mask: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        logits, after = self.model.step(ids, filled(self.like, iter(states)), Segments.traceable(mask))
        last = (mask.sum(1) - 1).clamp(min=0)
        return logits[torch.arange(ids.shape[0], device=ids.device), last], [leaf for _, leaf in leaves(after)]


# --- states as a list of tensors ---------------------------------------------------------------------------------------


def leaves(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state with its name, in the order of the names: a step may return keys in another order."""
    if isinstance(state, Tensor):
        yield path, state
        return
    items = sorted(state.items()) if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def filled(like: State, tensors: Iterator[Tensor]) -> State:
    """A state shaped as `like` with other tensors, in the order of `leaves`."""
    if isinstance(like, Tensor):
        return next(tensors)
    if isinstance(like, dict):
        return {key: filled(like[key], tensors) for key in sorted(like)}
    return [filled(value, tensors) for value in like]


@torch.no_grad()
def state_specs(model: Model) -> list[StateSpec]:
    """The parts of a state. A leaf that has another size after some tokens grows."""
    before = dict(leaves(model.init_state(1)))
    _, state = model.step(torch.zeros(1, 3, dtype=torch.long), model.init_state(1))
    after = dict(leaves(state))
    specs = []
    for name, leaf in before.items():
        shape, later = tuple(leaf.shape[1:]), tuple(after[name].shape[1:])
        grows = shape != later
        if grows and (shape[0] != 0 or shape[1:] != later[1:]):
            raise ValueError(f"the state {name!r} grows from {shape} to {later}, and only one slot a token can be exported")
        specs.append(StateSpec(name, shape, str(leaf.dtype).removeprefix("torch."), grows))
    return specs
