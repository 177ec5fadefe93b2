"""R >= 1 models trained on rows in memory, side by side: own weights, seeds, learning rates, dropout and rows.

The paper runs, the synthetic tasks and the task of shapes train here. On a GPU each model has a stream, a bfloat16 copy that runs,
and a CUDA graph for each width of its batches; on a CPU all is float32. Each gets the numbers that it gets alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, tee

import torch
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.data.order import number
from tokmix.training import loop
from tokmix.training.capture import Captured, CudaRecorder, turns
from tokmix.training.distributed import World
from tokmix.training.layer_modes import compile_layers
from tokmix.training.optimizers import Optimizers
from tokmix.training.precision import products
from tokmix.training.sharding import Replicated
from tokmix.training.static_shapes import Rows, RowsSlot
from tokmix.training.step import Forward, Step

Loss = Callable[[Forward, Tensor, int], Tensor]  # (forward, rows [B], columns) -> []
Report = Callable[[int, list[float]], None]
SCHEDULES, PRECISIONS = ("constant", "cosine"), ("bf16", "tf32", "float32")
BACKEND = "inductor"


@dataclass(frozen=True)
class Recipe:
    """The rate rises over `warmup` steps, then stays, or falls along a cosine to `lowest` at the last step. compiled: the layers in
    bf16 on a GPU, which takes longer than some hundred steps of a small model."""

    steps: int
    warmup: int = 0
    schedule: str = "constant"
    lowest: float = 0.0
    clip: float | None = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    precision: str = "bf16"
    compiled: bool = True

    def __post_init__(self) -> None:
        checks.at_least("steps", self.steps, 1)
        checks.at_least("warmup", self.warmup, 0)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.one_of("precision", self.precision, PRECISIONS)

    def rate(self, lr: float, step: int) -> float:
        if step < self.warmup:
            return lr * (step + 1) / self.warmup
        if self.schedule == "constant":
            return lr
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lowest + (lr - self.lowest) * (1 + math.cos(math.pi * progress)) / 2


@dataclass
class Replica:
    """A model with its first weights, and its loss: in float32, the mean over some training rows cut to so many columns. It must not ask
    the host for anything, since on a GPU it is recorded. seed: of its dropout; None: it draws from torch's generator as that stands.
    optimizer: as in `Optimizers`."""

    model: nn.Module
    loss: Loss
    lr: float
    weight_decay: float = 0.0
    seed: int | None = None
    optimizer: str = "adamw"


class Member:
    """A replica while it is trained (loop.Run)."""

    def __init__(self, replica: Replica, batches: Iterator[Rows], recipe: Recipe, device: torch.device,
                 turn: AbstractContextManager[None], say: Callable[[str], None]):  # fmt: skip
        self.replica, self.batches, self.recipe, self.turn = replica, batches, recipe, turn
        model, gpu = replica.model.to(device).train(), device.type == "cuda"
        optimizers = Optimizers(
            model.named_parameters(), replica.lr, kind=replica.optimizer, weight_decay=replica.weight_decay, betas=recipe.betas,
            decay_vectors=True, capturable=gpu,
        )  # fmt: skip
        alone = Replicated(World(device=device))
        alone.module = model
        step: Step[Rows] = Step(
            model, optimizers, alone, lambda forward, rows: replica.loss(forward, rows.index, rows.width), clip=recipe.clip or 0.0,
            half_copy=gpu and recipe.precision == "bf16", skip=True,
        )  # fmt: skip
        if step.copy is not None and recipe.compiled:
            compile_layers(step.copy, BACKEND)
        self.update = Captured(step, CudaRecorder(device), RowsSlot, say) if gpu else step
        # What stays in float32 beside bf16, such as a Fourier transform, need not be more exact than TF32.
        self.products = "float32" if recipe.precision == "float32" else "tf32"
        self.done, self.left_out = 0, 0
        self.recent: list[Tensor] = []  # [loss, norm of the gradient] of the steps since the last report
        if isinstance(self.update, Captured):
            first = next(batches)
            self.batches = chain([first], batches)
            with turn, products(self.products):
                self.update.prepare(first)

    def advance(self) -> bool:
        recipe, rows = self.recipe, next(self.batches, None)
        if rows is None:
            raise ValueError(f"the recipe has {recipe.steps} steps, but there were {self.done} batches")
        seed = None if self.replica.seed is None else number(self.replica.seed, self.done) >> 1
        with self.turn, products(self.products):
            self.recent.append(self.update([rows], [seed], recipe.rate(self.replica.lr, self.done)))
        self.done += 1
        return self.done < recipe.steps

    def mean_loss(self) -> float:
        """Of the steps since it was last asked for; NaN where all of them were left out."""
        sound = [loss for loss, norm in torch.stack(self.recent).tolist() if math.isfinite(norm)]
        self.left_out += len(self.recent) - len(sound)
        self.recent.clear()
        return math.fsum(sound) / len(sound) if sound else math.nan


def _own(place: int, batches: Iterable[tuple[int, Tensor]]) -> Iterator[Rows]:
    return (Rows(index[place], width) for width, index in batches)


def train(
    replicas: Sequence[Replica],
    batches: Iterable[tuple[int, Tensor]],
    recipe: Recipe,
    device: torch.device,
    *,
    every: int,
    report: Report,
    stop: Callable[[], bool] = lambda: False,
    begin: Callable[[Sequence[Member]], None] = lambda members: None,
    say: Callable[[str], None] = lambda line: None,
) -> list[int]:
    """batches: (width, index [replicas, B] on the host), recipe.steps of them.

    report(step, mean loss of each replica since the last report) every so many steps and after the last.
    stop: called after each step; True ends the run there. begin: called when the first step is recorded, before it is made; it may
    set the members back to where an earlier call stopped, and `batches` then has the rest.
    -> how many steps of each replica were left out, since a gradient was no finite number"""
    apart = zip(replicas, tee(batches, len(replicas)), turns(device, len(replicas)), strict=True)
    members = [Member(one, _own(place, source), recipe, device, turn, say) for place, (one, source, turn) in enumerate(apart)]
    begin(members)
    since = members[0].done % every

    def after() -> bool:
        nonlocal since
        done, since = members[0].done, since + 1
        ends = done == recipe.steps or stop()
        if since == every or ends:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            report(done, [member.mean_loss() for member in members])
            if device.type == "cuda":  # the members' streams do not wait for what the report reads
                torch.cuda.synchronize(device)
            since = 0
        return ends

    loop.train(members, after)
    return [member.left_out for member in members]
