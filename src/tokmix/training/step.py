"""One step of training one model: a function of the weights, the optimizer's state, the batches and (seed, step).

    batch ─> forward ─> loss ─> backward      for each of the step's batches (gradient accumulation)
          ─> sum over ranks ─> clip ─> optimizer ─> running mean of the weights

Dropout is seeded by the step, so no generator has a state to be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tokmix.core.model import Model
from tokmix.data.batches.rows import Batch
from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated

Loss = Callable[[Tensor, Batch], Tensor]  # (outputs, batch) -> summed over the batch's targets


class Step:
    def __init__(
        self,
        model: Model,
        optimizers: Optimizers,
        sharding: Replicated,
        loss: Loss,
        *,
        clip: float,
        average: Sequence[Tensor] = (),
        half: bool = False,
    ):
        self.model, self.optimizers, self.sharding, self.loss = model, optimizers, sharding, loss
        self.clip, self.average, self.half = clip, list(average), half
        self.asked: Callable[[Batch], Tensor | None] = lambda batch: None  # the tokens with a target, where the head is for them alone
        self.parameters = [parameter for _, parameter in optimizers.named]
        self.device = self.parameters[0].device

    def __call__(self, batches: Sequence[Batch], seeds: Sequence[int], rate: float, keep: float) -> Tensor:
        """keep: what stays of the running mean -> [2]: the loss, and the norm of the gradient before it was clipped."""
        self.model.train()
        self.optimizers.set_rate(rate)
        self.optimizers.zero_grad()
        targets = max(sum(batch.total for batch in batches), 1)
        total = torch.zeros((), device=self.device)
        for place, (batch, seed) in enumerate(zip(batches, seeds, strict=True)):
            torch.manual_seed(seed)
            with self.sharding.synchronized(last=place == len(batches) - 1):
                total += self.forward_backward(batch.to(self.device), batch.weight / targets)
        return self.finish(total, keep)

    def forward_backward(self, batch: Batch, scale: float | Tensor) -> Tensor:
        """Of this rank's part of a batch, on the device -> its loss."""
        with self.precision():
            at = self.asked(batch)
            outputs = self.sharding.module(batch.ids, batch.segments, *(() if at is None else (at,)))
        loss = self.loss(outputs, batch) * scale
        self.sharding.backward(loss)
        return loss.detach().float()

    def finish(self, total: Tensor, keep: float | Tensor) -> Tensor:
        """What follows when all batches of a step have gone backward."""
        total = self.sharding.world.sum(total)
        norm = self.sharding.clip(self.parameters, self.clip)
        self.optimizers.update()
        if self.average:
            with torch.no_grad():
                share = 1 - keep
                weights = [share] * len(self.average) if isinstance(share, Tensor) else share
                torch._foreach_lerp_(self.average, [parameter.detach() for parameter in self.parameters], weights)
        return torch.stack([total, norm.float()])

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()


def checkpoint_layers(model: Model) -> None:
    """Layers keep their input alone and run once more in the backward pass: less memory, a third more time, the same gradients."""
    for layer in model.layers:
        layer.forward = partial(_again, layer.forward)  # type: ignore[method-assign]


def _again(forward: Callable[..., Tensor], *given: object) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*given)
    return checkpoint(forward, *given, use_reentrant=False)  # type: ignore[no-any-return]


def plain_step(optimizers: Optimizers, loss: Tensor) -> Tensor:
    """Backward and update of a model by itself, without anything around it -> the loss"""
    optimizers.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizers.update()
    return loss.detach()
