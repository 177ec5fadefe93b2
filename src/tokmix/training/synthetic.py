"""A model of any causal stack on a synthetic task: build, train, score.

The base is MAD's: layers of (mixer, SwiGLU), norm before each (RMS), AdamW, the learning rate on a cosine down to 1e-6.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.model import Model, ModelConfig
from tokmix.core.positions import PositionCode, count
from tokmix.core.seeds import seeded
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.task import Examples, Task
from tokmix.training import replicas
from tokmix.training.step import Forward

LOWEST_RATE = 1e-6


class AutoEncoder(nn.Module):
    """ids [B, T] -> logits [B, T, vocab], all from the last position's state: an MLP on that state plus a code of the position asked."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.head == "none"
        self.encoder = Model(config)
        self.position_code = PositionCode("sinusoidal", config.dim, config.max_len)
        self.decoder = nn.Sequential(nn.Linear(config.dim, 2 * config.dim), nn.GELU(), nn.Linear(2 * config.dim, config.vocab))

    def forward(self, ids: Tensor) -> Tensor:
        last = self.encoder(ids)[:, -1:]  # [B, 1, D]
        return self.decoder(last + self.position_code(count(ids.shape[1], None, ids.device), last.dtype))


def config(task: Task, stack: str, dim: int = 128, **settings: Any) -> ModelConfig:
    """MAD's base model of that stack; `settings` are fields of ModelConfig that should be otherwise."""
    base = {"norm": "rms", "feed_forward_kind": "swiglu", "head": "none" if task.learns == "rebuild" else "lm"}
    return ModelConfig(stack=stack, dim=dim, vocab=task.vocab, causal=True, max_len=task.length, **{**base, **settings})


def build(task: Task, stack: str, dim: int = 128, *, seed: int = 0, **settings: Any) -> nn.Module:
    """A fresh model, [B, T] -> [B, T, vocab]. Compression gets an auto-encoder around the stack."""
    made = config(task, stack, dim, **settings)
    with seeded(seed):
        return AutoEncoder(made) if task.learns == "rebuild" else Model(made)


def in_order(rows: int, batch: int, epochs: int, seeds: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """(0, rows [seeds, B]) of every batch: all rows once an epoch, in an order of each seed's."""
    chance = {seed: torch.Generator().manual_seed(seed) for seed in seeds}
    for _ in range(epochs):
        order = {seed: torch.randperm(rows, generator=generator) for seed, generator in chance.items()}
        for chosen in torch.stack([order[seed] for seed in seeds]).split(batch, 1):
            yield 0, chosen


@dataclass(frozen=True)
class Outcome:
    accuracy: float  # on the test set's targets
    chance: float
    loss: float  # mean over the last epoch of training
    steps: int
    seconds: float  # of training


def train(
    task: Task,
    stack: str,
    dim: int = 128,
    *,
    epochs: int = 200,
    batch: int = 128,
    lr: float = 5e-4,
    weight_decay: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Callable[[int, float], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Train on the task's own training set and score the test set; `report` is called with each epoch and its loss."""
    checks.at_least("epochs", epochs, 1)
    checks.at_least("batch", batch, 1)
    data, test = (part.to(device) for part in task.split(seed))
    learned, model = task.learned(data), build(task, stack, dim, seed=seed, **settings).to(device)
    a_pass, start, losses = -(-len(data) // batch), time.perf_counter(), [math.nan]

    def loss(forward: Forward, index: Tensor, width: int) -> Tensor:
        return F.cross_entropy(forward(data.inputs[index]).flatten(0, 1), learned[index].flatten(), ignore_index=IGNORE)

    def note(step: int, means: list[float]) -> None:
        losses.append(means[0])
        if report is not None:
            report(step // a_pass, means[0])

    recipe = replicas.Recipe(epochs * a_pass, schedule="cosine", lowest=LOWEST_RATE, clip=None, precision="float32")
    order = in_order(len(data), batch, epochs, [seed])
    replica = replicas.Replica(model, loss, lr, weight_decay, seed)
    replicas.train([replica], order, recipe, data.inputs.device, every=a_pass, report=note)
    seconds = time.perf_counter() - start
    return Outcome(accuracy(model, test), task.chance, losses[-1], recipe.steps, seconds)


def cosine(lr: float, progress: float) -> float:
    """From lr at progress 0 down to LOWEST_RATE at 1."""
    return LOWEST_RATE + (lr - LOWEST_RATE) * (1 + math.cos(math.pi * progress)) / 2


@torch.no_grad()
def accuracy(model: nn.Module, data: Examples, batch: int = 256) -> float:
    """The share of targets at which the likeliest token is the one asked."""
    model.eval()
    right = [
        (model(inputs).argmax(-1) == targets).sum()
        for inputs, targets in zip(data.inputs.split(batch), data.targets.split(batch), strict=True)
    ]
    model.train()
    return int(torch.stack(right).sum()) / int((data.targets != IGNORE).sum())
