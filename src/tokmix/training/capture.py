"""A training step as CUDA graphs: what a small model waits for on a GPU is the starting of kernels, and a graph starts them as one.

    batch, on the host ─ pad to one of few shapes ─> static buffers of that shape ─> graph of its forward and backward pass
                                             after the step's last batch ─> graph of clip, optimizer, running mean

A graph repeats addresses, not values: inputs, gradients, the loss, the learning rate and the optimizer's state stay where they are. The
graphs of all shapes run one after the other, so they share their memory. Dropout: each replay reads the device generator's seed, which is
set from (seed, step) before it, so a resumed run repeats the numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.data.batches.mask import IGNORE
from tokmix.data.batches.rows import Batch
from tokmix.training.step import Step

WARM = 3  # runs before recording, in which libraries and kernels choose their way
SHAPES = 64  # compiled versions of a layer that are kept
LADDER = [1, 2, 3, 4, *(size for power in range(3, 25) for size in (3 << (power - 2), 1 << power))]  # 1 2 3 4 6 8 12 16 24 32 48 ...


def bucket(size: int, most: int | None = None) -> int:
    """The next size of the ladder, or `most` where that is nearer."""
    step = LADDER[bisect_left(LADDER, size)]
    return min(step, most) if most is not None and most >= size else step


# --- batches of few shapes ---------------------------------------------------------------------------------------------------


def lengths_of(batch: Batch) -> Tensor:
    """[B], of one sequence a row from column 0 on."""
    if batch.segments is None:
        return torch.full((batch.ids.shape[0],), batch.ids.shape[1])
    return torch.tensor(batch.segments.lengths)


def pad(batch: Batch, max_len: int, max_rows: int | None, causal: bool = False, pin: bool = False) -> Batch:
    """The batch in a shape of the ladder. Added rows hold one token and weigh nothing. Whole rows need no segments, and neither do rows of
    a causal model, since nothing looks at what stands behind their end."""
    rows, width = batch.ids.shape
    columns, more = bucket(width, max_len) - width, bucket(rows, max_rows) - rows
    ids = F.pad(batch.ids, (0, columns, 0, more))
    scores, below = batch.targets.is_floating_point(), (0, 0) * (batch.targets.dim() - 1)  # scores: [S], of several labels [S, classes]
    by_token = batch.targets.dim() == 2 and not scores
    targets = F.pad(batch.targets, (0, columns, 0, more) if by_token else (*below, 0, more), value=0.0 if scores else IGNORE)
    weights = torch.ones(rows) if scores and batch.row_weights is None else batch.row_weights
    weights = None if weights is None else F.pad(weights, (0, more))
    lengths = F.pad(lengths_of(batch), (0, more), value=1)
    whole = causal or bool((lengths == ids.shape[1]).all())
    segments = None if whole else Segments.padded(lengths, ids.shape[1])
    if pin:
        ids, targets, weights = ids.pin_memory(), targets.pin_memory(), None if weights is None else weights.pin_memory()
    return replace(batch, ids=ids, targets=targets, segments=segments, row_weights=weights)


@dataclass(frozen=True)
class Shape:
    rows: int
    width: int
    whole: bool  # every row is one sequence of the full width
    weighted: bool


@dataclass
class Slot:
    """The static inputs of one shape, on the device."""

    ids: Tensor  # [B, T]
    targets: Tensor
    lengths: Tensor | None  # [B]; None: whole rows
    weights: Tensor | None  # [B]
    scale: Tensor  # [], of the loss

    def fill(self, batch: Batch, scale: float) -> None:
        self.ids.copy_(batch.ids, non_blocking=True)
        self.targets.copy_(batch.targets, non_blocking=True)
        self.scale.fill_(scale)
        if self.lengths is not None:
            assert batch.segments is not None
            self.lengths.copy_(batch.segments.cu_seqlens.diff(), non_blocking=True)
        if self.weights is not None:
            assert batch.row_weights is not None
            self.weights.copy_(batch.row_weights, non_blocking=True)

    def batch(self, like: Batch) -> Batch:
        """What the model is given: made of the static tensors, on their device."""
        segments = None if self.lengths is None else Segments.padded(self.lengths, self.ids.shape[1])
        return replace(like, ids=self.ids, targets=self.targets, segments=segments, row_weights=self.weights)


# --- graphs ------------------------------------------------------------------------------------------------------------------

Work = Callable[[], None]


class Recorder(Protocol):
    def warm(self, work: Work) -> None: ...

    def record(self, work: Work) -> Work:
        """-> what replays it"""


class CudaRecorder:
    """Warms up on a stream of its own, as CUDA graphs want it, and records into one memory pool."""

    def __init__(self, device: torch.device):
        self.device, self.stream, self.pool = device, torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def warm(self, work: Work) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for _ in range(WARM):
                work()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        torch.cuda.synchronize(self.device)

    def record(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            work()
        return graph.replay


class Captured:
    """Does what its Step does, by graphs; where something cannot be recorded, by the step itself, and says so once."""

    def __init__(self, step: Step, recorder: Recorder, say: Callable[[str], None] = lambda line: None):
        self.step, self.recorder, self.say = step, recorder, say
        self.graphs: dict[Shape, tuple[Slot, Work]] = {}
        self.total, self.keep = torch.zeros((), device=step.device), torch.zeros((), device=step.device)
        self.found = torch.zeros(2, device=step.device)
        self.finish: Work | None = None
        self.reason: str | None = None  # why it is not captured

    def __call__(self, batches: Sequence[Batch], seeds: Sequence[int], rate: float, keep: float) -> Tensor:
        if self.reason is not None:
            return self.step(batches, seeds, rate, keep)
        try:
            return self._replay(batches, seeds, rate, keep)
        except RuntimeError as error:  # a mixer that reads its numbers on the host cannot be recorded
            self.reason = " ".join(str(error).split())[:200]
            self.say(f"steps run one kernel at a time, not as CUDA graphs: {self.reason}")
            self.forget()
            return self.step(batches, seeds, rate, keep)

    def forget(self) -> None:
        """Record everything anew at its next use."""
        self.graphs.clear()
        self.finish = None
        for parameter in self.step.parameters:
            parameter.grad = None

    def _replay(self, batches: Sequence[Batch], seeds: Sequence[int], rate: float, keep: float) -> Tensor:
        step, targets = self.step, max(sum(batch.total for batch in batches), 1)
        step.model.train()
        for parameter in step.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        step.optimizers.set_rate(rate)
        self.keep.fill_(keep)
        self.total.zero_()
        for batch, seed in zip(batches, seeds, strict=True):
            slot, replay = self._graph(batch)
            slot.fill(batch, batch.weight / targets)
            torch.manual_seed(seed)
            replay()
        if self.finish is None:
            self.finish = self._record(self._finish, self._finish_state())
        self.finish()
        return self.found.clone()

    def _graph(self, batch: Batch) -> tuple[Slot, Work]:
        rows, width = batch.ids.shape
        shape = Shape(rows, width, whole=batch.segments is None, weighted=batch.row_weights is not None)
        if shape not in self.graphs:
            device = self.step.device
            slot = Slot(
                batch.ids.to(device, copy=True), batch.targets.to(device, copy=True),
                None if batch.segments is None else batch.segments.cu_seqlens.diff().long().to(device),
                None if batch.row_weights is None else batch.row_weights.to(device, copy=True), torch.zeros((), device=device),
            )  # fmt: skip

            def forward_backward() -> None:
                self.total += self.step.forward_backward(slot.batch(batch), slot.scale)

            gradients = [parameter.grad for parameter in self.step.parameters if parameter.grad is not None]
            state = [*gradients, self.total, *self.step.model.buffers()]
            self.graphs[shape] = slot, self._record(forward_backward, state)
        return self.graphs[shape]

    def _finish(self) -> None:
        self.found.copy_(self.step.finish(self.total, self.keep))
        self.step.optimizers.zero_grad(set_to_none=False)

    def _finish_state(self) -> list[Tensor]:
        gradients = [parameter.grad for parameter in self.step.parameters if parameter.grad is not None]
        return [*gradients, *self.step.parameters, *self.step.average, self.found]

    def _record(self, work: Work, state: Sequence[Tensor]) -> Work:
        """What the warm-up changes is put back in place. Before its first step an optimizer has no state: it begins at zero."""
        optimizer = self.step.optimizers.tensors()
        before, moments = ([tensor.detach().clone() for tensor in some] for some in (state, optimizer))
        self.recorder.warm(work)
        try:
            return self.recorder.record(work)
        finally:
            with torch.no_grad():
                for tensor, was in zip(state, before, strict=True):
                    tensor.copy_(was)
                for place, tensor in enumerate(self.step.optimizers.tensors()):
                    tensor.copy_(moments[place]) if moments else tensor.zero_()


def compile_layers(model: Model) -> None:
    """Layer by layer: layers of one kind share what is compiled, and the pointwise work around products becomes few kernels."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, SHAPES)
    for layer in model.layers:
        layer.compile(dynamic=False)


def why_not(device: torch.device, world: int, packed: bool, checkpointed: bool, wanted: bool) -> str | None:
    """Why steps of a run cannot be captured, in a few words; None where they can."""
    reasons = {
        "there is no GPU": device.type != "cuda",
        "train.capture is off": not wanted,
        "gradients pass between several processes": world > 1,
        "train.packed rows and train.documents have no fixed shape": packed,
        "train.checkpoint_layers saves the state of random generators": checkpointed,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
