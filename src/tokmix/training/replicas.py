"""Small models trained side by side on one GPU: one stacked model (stacked.py), its step recorded as a CUDA graph.

    member k's float32 weights ──> slice k of the stack, in bf16 ── forward, backward of all ──> slice k of the gradients
               ^                                                                                          │
               └──────────────────── clip and AdamW of member k, at its own rate ─────────────────────────┘

Members share the shapes of their batches, not the rows: each has its own order, rate and weights. On a CPU they are trained one
by one, in float32. Dropout draws from the device's one generator, so a member's numbers depend a little on who sails beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.block import Layer
from tokmix.training.precision import products
from tokmix.training.stacked import Stack, alike

Loss = Callable[[nn.Module, Tensor, int], Tensor]
Report = Callable[[int, list[float]], None]
SCHEDULES, PRECISIONS = ("constant", "cosine"), ("bf16", "float32")
BACKEND = "inductor"
MOST = 2  # members of a stack: several stacks have a stream each, and fill the gaps between each other's kernels
WARM = 2  # steps before recording, in which libraries and kernels choose their way


@dataclass(frozen=True)
class Recipe:
    """The rate rises over `warmup` steps, then stays, or falls along a cosine to `lowest` at the last step. compiled: the layers of a
    stack in bf16, which takes longer than some hundred steps of a small model."""

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
class Replica:
    """One run. Its model comes with its first weights, made from its own seed."""

    model: nn.Module
    lr: float
    weight_decay: float = 0.0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """For scoring, on the float32 weights. On a CPU everything is float32: bfloat16 is no faster there."""
    if precision == "float32" or device.type != "cuda":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def _compile(model: nn.Module) -> None:
    """Layer by layer: layers of one shape share what is compiled, and the pointwise work around products becomes few kernels."""
    for part in model.modules():
        if isinstance(part, Layer):
            part.compile(backend=BACKEND, dynamic=False)


class _Own:
    """A member's weights on its device and all that changes them."""

    def __init__(self, member: Replica, recipe: Recipe, device: torch.device):
        self.model, self.clip = member.model.to(device).train(), recipe.clip
        self.weights: list[Tensor] = list(self.model.parameters())
        # [steps], and what a warm-up at the last step reads beyond them
        self.rates = torch.tensor(recipe.rates(member.lr) + [0.0] * WARM, device=device)
        self.rate = torch.tensor(member.lr, device=device)
        gpu = device.type == "cuda"
        # Fused on a CPU too: it is the kind that can leave a step out without asking the host.
        self.optimizer = torch.optim.AdamW(
            self.weights, self.rate, recipe.betas, weight_decay=member.weight_decay, fused=True, capturable=gpu
        )

    def update(self, step: Tensor) -> Tensor:
        """By the gradients that its weights have. One that is no finite number would be the end of the weights: such a step is left
        out. -> whether it was not, 1 or 0"""
        self.rate.copy_(self.rates.index_select(0, step)[0])
        norm = nn.utils.clip_grad_norm_(self.weights, self.clip or math.inf)
        sound = torch.isfinite(norm).float()
        self.optimizer.found_inf, self.optimizer.grad_scale = 1 - sound, None  # type: ignore[attr-defined]
        self.optimizer.step()
        return sound


class Trainer:
    """Members whose models are one stack: the same calls every time, so that a step can be recorded.

    Each keeps its weights in float32; a step runs on their stack, in bf16 if `half`, which is refreshed from them before each step.
    Casting as one goes (autocast) would move twice the bytes, and these steps are bound by bytes. One alone, in float32, is no stack."""

    def __init__(self, members: Sequence[Replica], recipe: Recipe, loss: Loss, device: torch.device, half: bool):
        self.own, self.loss, self.device = [_Own(member, recipe, device) for member in members], loss, device
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        # Of the steps since they were read that were not left out: their losses, and how many there are
        self.totals, self.counts = torch.zeros(2, len(members), device=device)
        self.stack = None if len(members) == 1 and not half else Stack([one.model for one in self.own]).to(device).train()
        if self.stack is not None and half:
            self.stack.to(torch.bfloat16)
            if recipe.compiled:
                _compile(self.stack)

    def advance(self, index: Tensor, width: int) -> None:
        """index [members, B]"""
        self._refresh()
        model = self.own[0].model if self.stack is None else self.stack
        losses = self.loss(model, index, width)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._fetch_gradients()
        sound = torch.stack([one.update(self.step) for one in self.own])
        self.totals += torch.where(sound > 0, losses.detach(), 0)
        self.counts += sound
        self.step += 1

    @torch.no_grad()
    def _refresh(self) -> None:
        for one in self.own:
            one.optimizer.zero_grad(set_to_none=True)
        if self.stack is None:
            return
        self.stack.zero_grad(set_to_none=True)
        for one, places in zip(self.own, self.stack.places, strict=True):
            torch._foreach_copy_([_slice(whole.data, place) for whole, place in places], one.weights)

    @torch.no_grad()
    def _fetch_gradients(self) -> None:
        if self.stack is None:
            return
        for one, places in zip(self.own, self.stack.places, strict=True):
            pairs = [(mine, _slice(its.grad, at)) for mine, (its, at) in zip(one.weights, places, strict=True) if its.grad is not None]
            wide = [torch.empty_like(mine) for mine, _ in pairs]
            torch._foreach_copy_(wide, [grad for _, grad in pairs])
            for (mine, _), grad in zip(pairs, wide, strict=True):
                mine.grad = grad


Group = tuple[Trainer, list[int]]  # and which members it trains


def _grouped(members: Sequence[Replica], recipe: Recipe, loss: Loss, device: torch.device) -> list[Group]:
    """Members that can be stacked together; on a CPU each alone."""
    gpu, found = device.type == "cuda", dict[Hashable, list[int]]()
    for place, member in enumerate(members):
        found.setdefault(alike(member.model) if gpu else place, []).append(place)
    half = gpu and recipe.precision == "bf16"
    parts = [part for group in found.values() for part in _parts(group)]
    return [(Trainer([members[place] for place in part], recipe, loss, device, half), part) for part in parts]


def _parts(group: list[int]) -> list[list[int]]:
    """Of two, or three where one would be left over: a size more is compiled once more."""
    count = max(1, len(group) // MOST)
    return [group[start::count] for start in range(count)]


def _slice(whole: Tensor, place: int | None) -> Tensor:
    return whole if place is None else whole[place]


class _OneByOne:
    def __init__(self, groups: Sequence[Group]):
        self.groups = groups

    def advance(self, index: Tensor, width: int) -> None:
        for trainer, members in self.groups:
            trainer.advance(index[members].to(trainer.device), width)


class _Recorded:
    """A graph for each shape of batch, made when it first occurs; they run one after the other, so they share their memory. Groups
    have a stream each."""

    def __init__(self, groups: Sequence[Group]):
        self.groups, self.device = groups, groups[0][0].device
        self.streams = [torch.cuda.Stream(self.device) for _ in groups]
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, list[Tensor]]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def advance(self, index: Tensor, width: int) -> None:
        shape, parts = (index.shape[1], width), [index[members] for _, members in self.groups]
        if shape not in self.graphs:
            self.graphs[shape] = self._record(parts, width)
        graph, places = self.graphs[shape]
        for place, part in zip(places, parts, strict=True):
            place.copy_(part, non_blocking=True)
        graph.replay()

    def _record(self, parts: Sequence[Tensor], width: int) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        places = [part.to(self.device) for part in parts]
        before = [_snapshot(trainer) for trainer, _ in self.groups]
        for _ in range(WARM):
            self._side_by_side(places, width)
        torch.cuda.synchronize(self.device)
        for (trainer, _), state in zip(self.groups, before, strict=True):
            _bring_back(trainer, state)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._side_by_side(places, width)
        return graph, places

    def _side_by_side(self, places: Sequence[Tensor], width: int) -> None:
        now = torch.cuda.current_stream(self.device)
        for (trainer, _), stream, rows in zip(self.groups, self.streams, places, strict=True):
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                trainer.advance(rows, width)
        for stream in self.streams:
            now.wait_stream(stream)


def _state(trainer: Trainer) -> list[Tensor]:
    """All that a step changes."""
    values = [value for one in trainer.own for value in (*one.weights, *one.model.buffers())]
    return [*values, trainer.step, trainer.totals, trainer.counts]


def _moments(trainer: Trainer) -> list[Tensor]:
    return [value for one in trainer.own for state in one.optimizer.state.values() for value in state.values()]


def _snapshot(trainer: Trainer) -> tuple[list[Tensor], list[Tensor]]:
    return [value.detach().clone() for value in _state(trainer)], [value.clone() for value in _moments(trainer)]


@torch.no_grad()
def _bring_back(trainer: Trainer, before: tuple[list[Tensor], list[Tensor]]) -> None:
    """What a warm-up changed, in place, since a recording knows places and not values."""
    values, moments = before
    if trainer.stack is not None:
        trainer.stack.zero_grad(set_to_none=True)
    for one in trainer.own:
        one.optimizer.zero_grad(set_to_none=True)
    for value, was in zip(_state(trainer), values, strict=True):
        value.copy_(was)
    for place, value in enumerate(_moments(trainer)):
        value.copy_(moments[place]) if moments else value.zero_()  # before the first step there is no state: it begins at zero


class _Tally:
    """Reads the losses of each member's steps since it last did, and counts the steps that were left out."""

    def __init__(self, groups: Sequence[Group], members: int):
        self.groups, self.left_out = groups, [0] * members

    def read(self, steps: int) -> list[float]:
        """The mean of each member's losses; NaN where all of its steps were left out."""
        means = [math.nan] * len(self.left_out)
        for trainer, members in self.groups:
            for place, total, count in zip(members, trainer.totals.tolist(), trainer.counts.tolist(), strict=True):
                means[place] = total / count if count else math.nan
                self.left_out[place] += steps - round(count)
            trainer.totals.zero_()
            trainer.counts.zero_()
        return means


def train(
    members: Sequence[Replica],
    loss: Loss,
    batches: Iterable[tuple[int, Tensor]],
    recipe: Recipe,
    device: torch.device,
    *,
    every: int,
    report: Report,
) -> list[int]:
    """loss(model, index, width) -> [K] in float32, of the training rows index [K, B] cut to `width` columns, of a model that takes
    K members' rows one after the other (K is 1 on a CPU). It must not ask the host for anything: it is recorded.
    batches: (width, index [members, B] on the host), recipe.steps of them.

    report(step, mean loss of each member since the last report) every so many steps and after the last.
    -> how many steps of each member were left out, since a gradient was no finite number"""
    groups = _grouped(members, recipe, loss, device)
    fleet: _Recorded | _OneByOne = _Recorded(groups) if device.type == "cuda" else _OneByOne(groups)
    # What stays in float32 beside bf16, such as a Fourier transform, need not be more exact than TF32.
    precision = "tf32" if recipe.precision == "bf16" else "float32"
    tally, since, done = _Tally(groups, len(members)), 0, 0
    for width, index in batches:
        with products(precision):
            fleet.advance(index, width)
        done, since = done + 1, since + 1
        if since == every or done == recipe.steps:
            report(done, tally.read(since))
            since = 0
        if done == recipe.steps:
            return tally.left_out
    raise ValueError(f"the recipe has {recipe.steps} steps, but there were {done} batches")
