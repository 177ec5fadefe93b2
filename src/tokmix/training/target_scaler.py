"""Scores far larger or smaller than 1, prices or shares for instance: while a model is trained, its head tells them in deviations from
the mean. An optimizer's step is as large as the learning rate whatever the scores are: weights that have to make thousands would never
get there, and fresh ones would be thousands of deviations off where scores are small."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NEAR = (0.1, 10.0)  # deviations that the customary steps reach as they are


def unit_of(deviation: float) -> float:
    """What the head's outputs count in."""
    return 1.0 if NEAR[0] <= deviation <= NEAR[1] else deviation


class TargetScaler:
    """The head's outputs times `unit`, plus `mean`, until `fold` makes that a part of its weights."""

    def __init__(self, head: nn.Linear, mean: float, unit: float):
        self.head, self.mean, self.unit = head, mean, unit
        self._hook = head.register_forward_hook(self._told)

    def _told(self, head: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.float() * self.unit + self.mean

    @torch.no_grad()
    def fold(self) -> None:
        self._hook.remove()
        self.head.weight.mul_(self.unit)
        self.head.bias.mul_(self.unit).add_(self.mean)
