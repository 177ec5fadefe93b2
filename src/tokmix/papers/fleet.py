"""Small models trained side by side on one GPU, the same step of all of them recorded as one CUDA graph.

A step of such a model is some hundred kernels of a few microseconds each; starting them one by one takes longer than they run.

    graph of a shape (rows, columns)      ┌─ stream 0: forward, backward, clip, AdamW of member 0 ─┐
                                    start ┼─ stream 1: ...                            of member 1 ─┼─ end
                                          └─ ...                                                   ┘

Members share the shapes of their batches, not the rows: each has its own order, rate and weights. On a CPU the same steps are done
one by one. Dropout draws from the device's one generator, so a member's numbers depend a little on who sails beside it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokmix import checks
from tokmix.block import Layer

Loss = Callable[[nn.Module, Tensor, int], Tensor]
Report = Callable[[int, list[float]], None]
SCHEDULES, PRECISIONS = ("constant", "cosine"), ("bf16", "float32")
BACKEND = "inductor"
WARM = 2  # steps before recording, in which libraries and kernels choose their way


@dataclass(frozen=True)
class Recipe:
    """The rate rises over `warmup` steps, then stays, or falls along a cosine to `lowest` at the last step."""

    steps: int
    warmup: int = 0
    schedule: str = "constant"
    lowest: float = 0.0
    clip: float | None = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    precision: str = "bf16"

    def __post_init__(self) -> None:
        checks.at_least("steps", self.steps, 1)
        checks.at_least("warmup", self.warmup, 0)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        checks.one_of("precision", self.precision, PRECISIONS)

    def rates(self, lr: float) -> list[float]:
        """Of every step."""
        return [self._rate(lr, step) for step in range(self.steps)]

    def _rate(self, lr: float, step: int) -> float:
        if step < self.warmup:
            return lr * (step + 1) / self.warmup
        if self.schedule == "constant":
            return lr
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lowest + (lr - self.lowest) * (1 + math.cos(math.pi * progress)) / 2


@dataclass
class Member:
    """One run. Its model comes with its first weights, made from its own seed."""

    model: nn.Module
    lr: float
    weight_decay: float = 0.0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """For scoring, on the float32 weights. On a CPU everything is float32: bfloat16 is no faster there."""
    if precision == "float32" or device.type != "cuda":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def _compiled(model: nn.Module) -> nn.Module:
    """Layer by layer: layers of one shape share what is compiled, and the pointwise work around products becomes few kernels."""
    for part in model.modules():
        if isinstance(part, Layer):
            part.compile(backend=BACKEND, dynamic=False)
    return model


class _Trainer:
    """A member on its device: one step is the same calls every time, so that it can be recorded.

    In bf16 the step runs on a copy of the model in that type, its layers compiled, refreshed from the float32 weights before each
    step; the gradients go back to those, and so does the optimizer's work. Casting as one goes (autocast) would move twice the
    bytes, and these steps are bound by bytes."""

    def __init__(self, member: Member, recipe: Recipe, loss: Loss, device: torch.device, half: bool):
        self.model, self.recipe, self.loss = member.model.to(device).train(), recipe, loss
        self.weights: list[Tensor] = list(self.model.parameters())
        self.copy = _compiled(copy.deepcopy(self.model).to(torch.bfloat16)) if half else self.model
        # [steps], and what a warm-up at the last step reads beyond them
        self.rates = torch.tensor(recipe.rates(member.lr) + [0.0] * WARM, device=device)
        self.rate = torch.tensor(member.lr, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.total = torch.zeros((), device=device)  # of the losses since it was read
        gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.weights, self.rate, recipe.betas, weight_decay=member.weight_decay, fused=gpu or None, capturable=gpu
        )

    def advance(self, index: Tensor, width: int) -> None:
        self.rate.copy_(self.rates.index_select(0, self.step)[0])
        self._refresh()
        loss = self.loss(self.copy, index, width)
        loss.backward()
        self._fetch_gradients()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.weights, self.recipe.clip)
        self.optimizer.step()
        self.total += loss.detach()
        self.step += 1

    @torch.no_grad()
    def _refresh(self) -> None:
        self.copy.zero_grad(set_to_none=True)
        if self.copy is not self.model:
            self.model.zero_grad(set_to_none=True)
            torch._foreach_copy_(list(self.copy.parameters()), self.weights)

    @torch.no_grad()
    def _fetch_gradients(self) -> None:
        if self.copy is self.model:
            return
        pairs = [(mine, its.grad) for mine, its in zip(self.weights, self.copy.parameters(), strict=True) if its.grad is not None]
        wide = [torch.empty_like(mine) for mine, _ in pairs]
        torch._foreach_copy_(wide, [grad for _, grad in pairs])
        for (mine, _), grad in zip(pairs, wide, strict=True):
            mine.grad = grad


def _values(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


class _Eager:
    def __init__(self, trainers: Sequence[_Trainer]):
        self.trainers = trainers

    def advance(self, index: Tensor, width: int) -> None:
        for trainer, rows in zip(self.trainers, index.to(self.trainers[0].total.device), strict=True):
            trainer.advance(rows, width)


class _Recorded:
    """A graph for each shape of batch, made when it first occurs; they run one after the other, so they share their memory."""

    def __init__(self, trainers: Sequence[_Trainer]):
        self.trainers, self.device = trainers, trainers[0].total.device
        self.streams = [torch.cuda.Stream(self.device) for _ in trainers]
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def advance(self, index: Tensor, width: int) -> None:
        shape = (index.shape[1], width)
        if shape not in self.graphs:
            self.graphs[shape] = self._record(index, width)
        graph, place = self.graphs[shape]
        place.copy_(index, non_blocking=True)
        graph.replay()

    def _record(self, index: Tensor, width: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        place = index.to(self.device)
        before = [_snapshot(trainer) for trainer in self.trainers]
        for _ in range(WARM):
            self._side_by_side(place, width)
        torch.cuda.synchronize(self.device)
        for trainer, state in zip(self.trainers, before, strict=True):
            _bring_back(trainer, state)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._side_by_side(place, width)
        return graph, place

    def _side_by_side(self, index: Tensor, width: int) -> None:
        now = torch.cuda.current_stream(self.device)
        for trainer, stream, rows in zip(self.trainers, self.streams, index, strict=True):
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                trainer.advance(rows, width)
        for stream in self.streams:
            now.wait_stream(stream)


_State = tuple[list[Tensor], list[Tensor], Tensor, Tensor]


def _snapshot(trainer: _Trainer) -> _State:
    moments = [value.clone() for state in trainer.optimizer.state.values() for value in state.values()]
    return [value.detach().clone() for value in _values(trainer.model)], moments, trainer.step.clone(), trainer.total.clone()


@torch.no_grad()
def _bring_back(trainer: _Trainer, state: _State) -> None:
    """What a warm-up changed, in place, since a recording knows places and not values."""
    weights, moments, step, total = state
    trainer.copy.zero_grad(set_to_none=True)
    trainer.optimizer.zero_grad(set_to_none=True)
    for value, before in zip(_values(trainer.model), weights, strict=True):
        value.copy_(before)
    now = [value for one in trainer.optimizer.state.values() for value in one.values()]
    for place, value in enumerate(now):
        value.copy_(moments[place]) if moments else value.zero_()  # before the first step there is no state: it begins at zero
    trainer.step.copy_(step)
    trainer.total.copy_(total)


def train(
    members: Sequence[Member],
    loss: Loss,
    batches: Iterable[tuple[int, Tensor]],
    recipe: Recipe,
    device: torch.device,
    *,
    every: int,
    report: Report,
) -> None:
    """loss(model, index, width) -> a scalar in float32, of the training rows index [B] cut to `width` columns, from the model it is
    given. It must not ask the host for anything: it is recorded. batches: (width, index [members, B] on the host), recipe.steps of them.

    report(step, mean loss of each member since the last report) every so many steps and after the last."""
    half = recipe.precision == "bf16" and device.type == "cuda"
    trainers = [_Trainer(member, recipe, loss, device, half) for member in members]
    fleet: _Recorded | _Eager = _Recorded(trainers) if device.type == "cuda" else _Eager(trainers)
    since = done = 0
    for width, index in batches:
        fleet.advance(index, width)
        done, since = done + 1, since + 1
        if since == every or done == recipe.steps:
            losses = torch.stack([trainer.total for trainer in trainers]) / since
            for trainer in trainers:
                trainer.total.zero_()
            report(done, losses.tolist())
            since = 0
        if done == recipe.steps:
            return
    raise ValueError(f"the recipe has {recipe.steps} steps, but there were {done} batches")
