"""R >= 1 models of one architecture trained side by side: own weights, seeds, learning rates, dropout and rows.

    replica k's float32 weights ──> slice k of the stack, in bf16 ── forward, backward of all ──> slice k of the gradients
               ^                                                                                          │
               └──────────────────── clip and AdamW of replica k, at its own rate ────────────────────────┘

On a GPU replicas are one stacked model (stacked.py) and a step is a CUDA graph. On a CPU they are trained one by one, in float32. The
replicas' batches have the same shapes and other rows. On a GPU dropout uses one shared generator, so results vary slightly with the other
replicas. Data is in memory: the paper runs, the synthetic tasks and the task of shapes train here; `tokmix train` has engine.py.
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
from tokmix.training.capture import WARM, CudaRecorder, Work
from tokmix.training.optimizers import Optimizers
from tokmix.training.precision import products
from tokmix.training.stacked import Stack, alike

Loss = Callable[[nn.Module, Tensor, int], Tensor]
Report = Callable[[int, list[float]], None]
SCHEDULES, PRECISIONS = ("constant", "cosine"), ("bf16", "float32")
BACKEND = "inductor"
MOST = 2  # replicas of a stack: several stacks have a stream each, and fill the gaps between each other's kernels


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
    """A replica's weights on its device and all that changes them."""

    def __init__(self, replica: Replica, recipe: Recipe, device: torch.device):
        self.model, self.clip = replica.model.to(device).train(), recipe.clip
        self.weights: list[Tensor] = list(self.model.parameters())
        # [steps], and what a warm-up at the last step reads beyond them
        self.rates = torch.tensor(recipe.rates(replica.lr) + [0.0] * WARM, device=device)
        self.optimizers = Optimizers(
            self.model.named_parameters(), replica.lr, weight_decay=replica.weight_decay, betas=recipe.betas, decay_vectors=True,
            capturable=True,
        )  # fmt: skip

    def update(self, step: Tensor) -> Tensor:
        """By the gradients that its weights have. A step whose gradient is not finite is left out -> 1 where it was done, 0 where not"""
        self.optimizers.set_rate(self.rates.index_select(0, step)[0])
        norm = nn.utils.clip_grad_norm_(self.weights, self.clip or math.inf)
        sound = torch.isfinite(norm).float()
        self.optimizers.update(skip=1 - sound)
        return sound


class Trainer:
    """Replicas whose models are one stack: the same calls every time, so that a step can be recorded.

    Each keeps its weights in float32; a step runs on their stack, in bf16 if `half`, which is refreshed from them before each step.
    Casting as one goes (autocast) would move twice the bytes, and these steps are bound by bytes. One alone, in float32, is no stack."""

    def __init__(self, replicas: Sequence[Replica], recipe: Recipe, loss: Loss, device: torch.device, half: bool):
        self.own, self.loss, self.device = [_Own(replica, recipe, device) for replica in replicas], loss, device
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        # Of the steps since they were read that were not left out: their losses, and how many there are
        self.totals, self.counts = torch.zeros(2, len(replicas), device=device)
        self.stack = None if len(replicas) == 1 and not half else Stack([one.model for one in self.own]).to(device).train()
        if self.stack is not None and half:
            self.stack.to(torch.bfloat16)
            if recipe.compiled:
                _compile(self.stack)

    def advance(self, index: Tensor, width: int) -> None:
        """index [replicas, B]"""
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
            one.optimizers.zero_grad()
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


Group = tuple[Trainer, list[int]]  # and which replicas it trains


def _grouped(replicas: Sequence[Replica], recipe: Recipe, loss: Loss, device: torch.device) -> list[Group]:
    """Replicas that can be stacked together; on a CPU each alone."""
    gpu, found = device.type == "cuda", dict[Hashable, list[int]]()
    for place, replica in enumerate(replicas):
        found.setdefault(alike(replica.model) if gpu else place, []).append(place)
    half = gpu and recipe.precision == "bf16"
    parts = [part for group in found.values() for part in _parts(group)]
    return [(Trainer([replicas[place] for place in part], recipe, loss, device, half), part) for part in parts]


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
        for trainer, replicas in self.groups:
            trainer.advance(index[replicas].to(trainer.device), width)


class _Recorded:
    """A graph for each shape of batch, made when it first occurs; they run one after the other, so they share their memory. Groups
    have a stream each."""

    def __init__(self, groups: Sequence[Group]):
        self.groups, self.device = groups, groups[0][0].device
        self.streams = [torch.cuda.Stream(self.device) for _ in groups]
        self.graphs: dict[tuple[int, int], tuple[Work, list[Tensor]]] = {}
        self.recorder = CudaRecorder(self.device)

    def advance(self, index: Tensor, width: int) -> None:
        shape, parts = (index.shape[1], width), [index[replicas] for _, replicas in self.groups]
        if shape not in self.graphs:
            self.graphs[shape] = self._record(parts, width)
        replay, places = self.graphs[shape]
        for place, part in zip(places, parts, strict=True):
            place.copy_(part, non_blocking=True)
        replay()

    def _record(self, parts: Sequence[Tensor], width: int) -> tuple[Work, list[Tensor]]:
        places = [part.to(self.device) for part in parts]
        before = [_snapshot(trainer) for trainer, _ in self.groups]
        self.recorder.warm(lambda: self._side_by_side(places, width))
        for (trainer, _), state in zip(self.groups, before, strict=True):
            _bring_back(trainer, state)
        torch.cuda.synchronize(self.device)
        return self.recorder.record(lambda: self._side_by_side(places, width)), places

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
    return [value for one in trainer.own for value in one.optimizers.tensors()]


def _snapshot(trainer: Trainer) -> tuple[list[Tensor], list[Tensor]]:
    return [value.detach().clone() for value in _state(trainer)], [value.clone() for value in _moments(trainer)]


@torch.no_grad()
def _bring_back(trainer: Trainer, before: tuple[list[Tensor], list[Tensor]]) -> None:
    """What a warm-up changed, in place, since a recording knows places and not values."""
    values, moments = before
    if trainer.stack is not None:
        trainer.stack.zero_grad(set_to_none=True)
    for one in trainer.own:
        one.optimizers.zero_grad()
    for value, was in zip(_state(trainer), values, strict=True):
        value.copy_(was)
    for place, value in enumerate(_moments(trainer)):
        value.copy_(moments[place]) if moments else value.zero_()  # before the first step there is no state: it begins at zero


class _Tally:
    """Reads the losses of each replica's steps since it last did, and counts the steps that were left out."""

    def __init__(self, groups: Sequence[Group], replicas: int):
        self.groups, self.left_out = groups, [0] * replicas

    def read(self, steps: int) -> list[float]:
        """The mean of each replica's losses; NaN where all of its steps were left out."""
        means = [math.nan] * len(self.left_out)
        for trainer, replicas in self.groups:
            for place, total, count in zip(replicas, trainer.totals.tolist(), trainer.counts.tolist(), strict=True):
                means[place] = total / count if count else math.nan
                self.left_out[place] += steps - round(count)
            trainer.totals.zero_()
            trainer.counts.zero_()
        return means


def train(
    replicas: Sequence[Replica],
    loss: Loss,
    batches: Iterable[tuple[int, Tensor]],
    recipe: Recipe,
    device: torch.device,
    *,
    every: int,
    report: Report,
    stop: Callable[[], bool] = lambda: False,
) -> list[int]:
    """loss(model, index, width) -> [K] in float32, of the training rows index [K, B] cut to `width` columns, of a model that takes
    K replicas' rows one after the other (K is 1 on a CPU). It must not ask the host for anything: it is recorded.
    batches: (width, index [replicas, B] on the host), recipe.steps of them.

    report(step, mean loss of each replica since the last report) every so many steps and after the last.
    stop: asked after each step; True ends the run there.
    -> how many steps of each replica were left out, since a gradient was no finite number"""
    groups = _grouped(replicas, recipe, loss, device)
    together: _Recorded | _OneByOne = _Recorded(groups) if device.type == "cuda" else _OneByOne(groups)
    # What stays in float32 beside bf16, such as a Fourier transform, need not be more exact than TF32.
    precision = "tf32" if recipe.precision == "bf16" else "float32"
    tally, since, done = _Tally(groups, len(replicas)), 0, 0
    for width, index in batches:
        with products(precision):
            together.advance(index, width)
        done, since = done + 1, since + 1
        ends = done == recipe.steps or stop()
        if since == every or ends:
            report(done, tally.read(since))
            since = 0
        if ends:
            return tally.left_out
    raise ValueError(f"the recipe has {recipe.steps} steps, but there were {done} batches")
