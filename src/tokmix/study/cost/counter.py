"""Compares the formulas with torch's operation counter, on meta tensors, which take no memory at any length.

It is fast except for the causal scan of `hypermixing`: its chunks of 16 tokens are counted one by one."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from tokmix.core.model import Model
from tokmix.ops import flops as _flops  # noqa: F401  (tells the counter what is inside our own ops)

SILENT = 2.0  # seconds until progress is printed


@dataclass(frozen=True)
class Check:
    """FLOPs of matrix products of one example of this length, by formula and by counter."""

    length: int
    forward: int
    forward_counted: int
    training: int
    training_counted: int

    @property
    def equal(self) -> bool:
        return self.forward == self.forward_counted and self.training == self.training_counted

    def record(self) -> dict[str, int | bool]:
        return {**self.__dict__, "equal": self.equal}


def count(model: Model, length: int) -> tuple[int, int]:
    """(forward, forward and backward) of a model on the meta device."""
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        model(ids).sum().backward()
    return forward, counter.get_total_flops()


def check(model: Model, length: int) -> Check:
    cost = model.cost(length)
    forward, training = count(model, length)
    return Check(length, cost.matmul, forward, cost.training, training)


def check_all(name: str, model: Model, lengths: Sequence[int]) -> list[Check]:
    began, found = time.monotonic(), []
    for place, length in enumerate(lengths):
        if (spent := time.monotonic() - began) > SILENT:
            line = f"counting the operations of {name} at {length:,} tokens, {place} of {len(lengths)} lengths done in {spent:.0f} s"
            print(line, file=sys.stderr, flush=True)
        found.append(check(model, length))
    return found
