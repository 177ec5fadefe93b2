"""A training step as CUDA graphs: what a small model waits for on a GPU is the starting of kernels, and a graph starts them as one.

    batch, on the host ─ pad to one of few shapes ─> static buffers of that shape ─> graph of the whole step
    several batches a step (train.accumulate)      ─> a graph of each batch's forward and backward pass ─> a graph of the update

A graph repeats addresses, not values: inputs, the loss, the learning rate and the optimizer's state stay where they are. The graphs
of all shapes run one after the other, so they share their memory. Dropout: each replay reads the device generator's seed, which is
set from (seed, step) before it, so a resumed run repeats the numbers. Runs side by side have a stream and a generator state each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, Self

import torch
from torch import Tensor

from tokmix.training.step import B, Step, generator_of

WARM = 3  # runs before recording, in which libraries and kernels choose their way


class Slot(Protocol[B]):
    """The static inputs of one shape of batch, on the device."""

    scale: Tensor  # [], of the loss

    @staticmethod
    def shape(batch: B) -> Hashable: ...  # equal for batches that one recording serves

    @classmethod
    def of(cls, batch: B, device: torch.device) -> Self: ...

    def fill(self, batch: B) -> None: ...

    def batch(self, like: B) -> B: ...  # what the model reads: made of the static tensors


Work = Callable[[], None]


class Recorder(Protocol):
    def warm(self, work: Work) -> None: ...

    def record(self, work: Work) -> Work: ...  # -> what replays it


class CudaRecorder:
    """Warms up on a stream of its own, as CUDA graphs want it, and records into one memory pool. What other threads ask of CUDA
    meanwhile (the reader pins the memory of its batches) does not spoil a recording."""

    def __init__(self, device: torch.device):
        self.device, self.stream, self.pool = device, torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def warm(self, work: Work) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream), warnings.catch_warnings():
            # Of a first product in autograd's own thread, and of gradients asked for on a side stream: both are meant here.
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS|The AccumulateGrad node's stream")
            for _ in range(WARM):
                work()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        torch.cuda.synchronize(self.device)

    def record(self, work: Work) -> Work:
        graph, generator, before = torch.cuda.CUDAGraph(), generator_of(self.device), torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:  # a recording that breaks off leaves its stream as the current one, and the generator recording
            torch.cuda.set_stream(before)
            generator.graphsafe_set_state(generator.clone_state())
            raise RuntimeError(str(error.__context__ or error)) from error
        return graph.replay


class Turn:
    """Around all that one of several runs does on a GPU: a stream and a state of the random generator of its own. So runs do not wait
    for each other, and a graph that still runs does not see the seed of another run's next step."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.default = generator_of(device)
        self.own = self.default.clone_state()
        self.before: list[tuple[torch.Generator, AbstractContextManager[None]]] = []

    def __enter__(self) -> None:
        inside = torch.cuda.stream(self.stream)
        self.before.append((self.default.graphsafe_get_state(), inside))
        self.default.graphsafe_set_state(self.own)
        inside.__enter__()

    def __exit__(self, *error: object) -> None:
        state, inside = self.before.pop()
        self.own = self.default.graphsafe_get_state()
        inside.__exit__(None, None, None)
        self.default.graphsafe_set_state(state)


def turns(device: torch.device, runs: int) -> list[AbstractContextManager[None]]:
    """One for each of the runs side by side on a device."""
    apart = device.type == "cuda" and runs > 1
    return [Turn(device) if apart else nullcontext() for _ in range(runs)]


class Captured(Generic[B]):
    """Does what its Step does, by graphs; where something cannot be recorded, by the step itself, and says so once."""

    def __init__(self, step: Step[B], recorder: Recorder, slots: type[Slot[B]], say: Callable[[str], None] = lambda line: None,
                 *, whole: bool = True):  # fmt: skip
        """whole: every step has one batch. Its gradients are made by the backward pass, instead of being added to zeros."""
        self.step, self.recorder, self.slots, self.say, self.whole = step, recorder, slots, say, whole
        self.graphs: dict[Hashable, tuple[Slot[B], Work]] = {}
        self.total, self.keep = torch.zeros((), device=step.device), torch.zeros((), device=step.device)
        self.found = torch.zeros(2, device=step.device)
        self.finish: Work | None = None
        self.reason: str | None = None  # why it is not captured

    def __call__(self, batches: Sequence[B], seeds: Sequence[int | None], rate: float, keep: float = 0.0) -> Tensor:
        if self.reason is not None:
            return self.step(batches, seeds, rate, keep)
        try:
            return self._replay(batches, seeds, rate, keep)
        except RuntimeError as error:
            self._give_up(error)
            return self.step(batches, seeds, rate, keep)

    def prepare(self, batch: B) -> None:
        """Record the step of such a batch, without making it."""
        try:
            self.graph_of(batch)
        except RuntimeError as error:
            self._give_up(error)

    def _give_up(self, error: RuntimeError) -> None:
        """A mixer that reads its numbers on the host cannot be recorded."""
        self.reason = " ".join(str(error).split())[:200]
        self.say(f"steps run one kernel at a time, not as CUDA graphs: {self.reason}")
        self.forget()

    def forget(self) -> None:
        """Record everything anew at its next use."""
        self.graphs.clear()
        self.finish = None
        self.step.zero_grad()

    def _replay(self, batches: Sequence[B], seeds: Sequence[int | None], rate: float, keep: float) -> Tensor:
        step, targets = self.step, max(sum(batch.total for batch in batches), 1)
        step.begin()
        step.optimizers.set_rate(rate)
        self.keep.fill_(keep)
        for batch, seed in zip(batches, seeds, strict=True):
            slot, replay = self.graph_of(batch)
            slot.fill(batch)
            slot.scale.fill_(batch.weight / targets)
            if seed is not None:
                self.step.generator.manual_seed(seed)
            replay()
        if not self.whole:
            if self.finish is None:
                self.finish = self._record(self._finish)
            self.finish()
        return self.found.clone()

    def graph_of(self, batch: B) -> tuple[Slot[B], Work]:
        shape, whole = self.slots.shape(batch), self.whole
        if shape not in self.graphs:
            slot = self.slots.of(batch, self.step.device)

            def work() -> None:
                if whole:
                    self.step.zero_grad()
                    self.total.zero_()
                self.total.add_(self.step.forward_backward(slot.batch(batch), slot.scale))
                if whole:
                    self.found.copy_(self.step.finish(self.total, self.keep))

            if not whole:
                for parameter in self.step.trained():
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.graphs[shape] = slot, self._record(work)
            if whole:  # gradients of a graph stay in its memory, which the next recording uses again
                self.step.zero_grad()
        return self.graphs[shape]

    def _finish(self) -> None:
        self.found.copy_(self.step.finish(self.total, self.keep))
        self.total.zero_()
        self.step.zero_grad(set_to_none=False)

    def _record(self, work: Work) -> Work:
        """What the warm-up changes is put back in place. Before its first step an optimizer has no state: it begins at zero."""
        gradients = [parameter.grad for parameter in self.step.trained() if parameter.grad is not None]
        state = [*self.step.state(), *gradients, self.total, self.found]
        before, moments = ([tensor.detach().clone() for tensor in some] for some in (state, self.step.optimizers.tensors()))
        self.recorder.warm(work)
        try:
            return self.recorder.record(work)
        finally:
            with torch.no_grad():
                for tensor, was in zip(state, before, strict=True):
                    tensor.copy_(was)
                for place, tensor in enumerate(self.step.optimizers.tensors()):
                    tensor.copy_(moments[place]) if moments else tensor.zero_()


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
