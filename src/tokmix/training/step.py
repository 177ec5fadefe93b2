"""One step of training one model: a function of the weights, the optimizer's state, the batches and (seed, step).

    batch ─> forward ─> loss ─> backward      for each of the step's batches (gradient accumulation)
          ─> sum over ranks ─> clip ─> optimizer ─> running mean of the weights

Dropout is seeded by the step, so no generator has a state to be saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated


class StepBatch(Protocol):
    """What a step needs of a batch."""

    @property
    def total(self) -> int: ...  # targets of the whole batch, over all ranks

    @property
    def weight(self) -> float: ...  # 0: this rank reads the batch only to keep step

    def to(self, device: torch.device) -> Self: ...


B = TypeVar("B", bound=StepBatch)
Forward = Callable[..., Tensor]  # a model's forward pass, in the precision of the run
Loss = Callable[[Forward, B], Tensor]  # (forward, batch) -> summed over the batch's targets


def generator_of(device: torch.device) -> torch.Generator:
    """The one that draws there. torch.manual_seed visits every kind of device: 0.3 ms, against 1 µs."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


class Step(Generic[B]):
    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        sharding: Replicated,
        loss: Loss[B],
        *,
        clip: float,
        average: Sequence[Tensor] = (),
        half: bool = False,
        half_copy: bool = False,
        skip: bool = False,
    ):
        """half: bfloat16 by autocast. half_copy: a bfloat16 copy of the model runs, and the float32 weights learn; the step of a small
        model is bound by bytes, and autocast reads twice as many. skip: leave out a step whose gradient is not finite (AdamW)."""
        self.model, self.optimizers, self.sharding, self.loss = model, optimizers, sharding, loss
        self.clip, self.average, self.half, self.skip = clip, list(average), half, skip
        self.parameters = [parameter for _, parameter in optimizers.named]
        self.device = self.parameters[0].device
        self.generator = generator_of(self.device)
        self.copy = copy.deepcopy(model).to(torch.bfloat16).train() if half_copy else None

    def __call__(self, batches: Sequence[B], seeds: Sequence[int | None], rate: float, keep: float = 0.0) -> Tensor:
        """keep: what stays of the running mean -> [2]: the loss, and the norm of the gradient before it was clipped."""
        self.begin()
        self.optimizers.set_rate(rate)
        self.zero_grad()
        targets = max(sum(batch.total for batch in batches), 1)
        total = torch.zeros((), device=self.device)
        for place, (batch, seed) in enumerate(zip(batches, seeds, strict=True)):
            if seed is not None:
                self.generator.manual_seed(seed)
            with self.sharding.synchronized(last=place == len(batches) - 1):
                total += self.forward_backward(batch.to(self.device), batch.weight / targets)
        return self.finish(total, keep)

    def begin(self) -> None:
        """An evaluation leaves a model in its other mode. Setting the mode walks over all modules."""
        if not self.model.training:
            self.model.train()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizers.zero_grad(set_to_none)
        if self.copy is not None:
            self.copy.zero_grad(set_to_none)

    def forward_backward(self, batch: B, scale: float | Tensor) -> Tensor:
        """Of this rank's part of a batch, on the device -> its loss."""
        loss = self.loss(self.forward, batch) * scale
        self.sharding.backward(loss)
        return loss.detach().float()

    def forward(self, *inputs: object) -> Tensor:
        with self.precision():
            return (self.sharding.module if self.copy is None else self.copy)(*inputs)  # type: ignore[no-any-return]

    def finish(self, total: Tensor, keep: float | Tensor) -> Tensor:
        """What follows when all batches of a step have gone backward."""
        total = self.sharding.world.sum(total)
        if self.copy is not None:
            self._fetch_gradients()
        norm = self.sharding.clip(self.parameters, self.clip)
        self.optimizers.update((~torch.isfinite(norm)).float() if self.skip else None)
        with torch.no_grad():
            if self.average:
                share = 1 - keep
                weights = [share] * len(self.average) if isinstance(share, Tensor) else share
                torch._foreach_lerp_(self.average, [parameter.detach() for parameter in self.parameters], weights)
            if self.copy is not None:
                torch._foreach_copy_(list(self.copy.parameters()), list[Tensor](self.parameters))
        return torch.stack([total, norm.float()])

    @torch.no_grad()
    def _fetch_gradients(self) -> None:
        pairs = [(mine, half.grad) for mine, half in zip(self.parameters, self.trained(), strict=True) if half.grad is not None]
        wide = [torch.empty_like(mine) for mine, _ in pairs]
        torch._foreach_copy_(wide, [grad for _, grad in pairs])
        for (mine, _), grad in zip(pairs, wide, strict=True):
            mine.grad = grad

    def trained(self) -> list[nn.Parameter]:
        """Those that the backward pass gives a gradient."""
        return self.parameters if self.copy is None else list(self.copy.parameters())

    def state(self) -> list[Tensor]:
        """The tensors that a step changes, beside the optimizer's."""
        copied = [] if self.copy is None else [*self.copy.parameters(), *self.copy.buffers()]
        return [*self.parameters, *self.model.buffers(), *self.average, *copied]

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()
