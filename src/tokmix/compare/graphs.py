"""Small models trained side by side on one GPU.

A step of such a model is a hundred kernels of a few microseconds each, and starting them takes longer than they run. So an epoch
is recorded once as a CUDA graph, which is started as one, and each model has a stream of its own, so that they fill the GPU
together. The numbers are those of toy.train: the same batches in the same order, the same optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tokmix import toy
from tokmix.data.shapes import Shapes

WARM = 3  # steps before recording, in which libraries and kernels choose their way


class Recorded:
    """An epoch of one model."""

    def __init__(self, model: toy.ShapesModel, data: Shapes, batch: int, lr: float):
        self.model, self.data, self.batch = model.train(), data, batch
        self.stream = torch.cuda.Stream(data.inputs.device)
        self.order = torch.arange(len(data), device=data.inputs.device)  # what an epoch reads, in this order; filled before each
        # capturable: its count of steps stands on the GPU, where the recording can raise it
        self.optimizer = torch.optim.Adam(model.parameters(), lr, capturable=True)
        self._warm_up()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._epoch()

    def _epoch(self, steps: int | None = None) -> None:
        for chosen in self.order.split(self.batch)[:steps]:
            toy.step(self.model, self.optimizer, self.data.inputs[chosen], self.data.targets[chosen])

    def _reset(self, weights: Sequence[torch.Tensor]) -> None:
        """As if the warm-up had not been; in place, since the recording knows places and not values."""
        _restore(self.model, weights)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def _warm_up(self) -> None:
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._epoch(WARM)
            if len(self.data) % self.batch:  # the last batch is smaller
                chosen = self.order.split(self.batch)[-1]
                toy.step(self.model, self.optimizer, self.data.inputs[chosen], self.data.targets[chosen])
        torch.cuda.current_stream().wait_stream(self.stream)
        self._reset(weights)
        torch.cuda.synchronize()

    def replay(self, order: torch.Tensor) -> None:
        with torch.cuda.stream(self.stream):
            self.order.copy_(order)
            self.graph.replay()


def train(
    models: Sequence[toy.ShapesModel],
    data: Shapes,
    seeds: Sequence[int],
    epochs: int,
    begin: Callable[[], None] = lambda: None,
    batch: int = 100,
    lr: float = 1e-3,
) -> None:
    """Every model with the batches of its seed, all at a time. begin() is called when all is recorded and training starts: what
    the first use of a library or the compiling of a kernel takes is no part of it."""
    chance = [torch.Generator().manual_seed(seed) for seed in seeds]
    orders = [torch.stack([torch.randperm(len(data), generator=one) for _ in range(epochs)]).to(data.inputs.device) for one in chance]
    weights = [[parameter.detach().clone() for parameter in model.parameters()] for model in models]
    try:
        recorded = [Recorded(model, data, batch, lr) for model in models]
    except RuntimeError:  # a mixer that looks at its numbers on the host cannot be recorded
        torch.cuda.synchronize()
        begin()
        _one_by_one(models, weights, data, seeds, epochs, batch, lr)
        return
    begin()
    for epoch in range(epochs):
        for one, order in zip(recorded, orders, strict=True):
            one.replay(order[epoch])
    torch.cuda.synchronize()


@torch.no_grad()
def _restore(model: toy.ShapesModel, weights: Sequence[torch.Tensor]) -> None:
    for parameter, before in zip(model.parameters(), weights, strict=True):
        parameter.copy_(before)
        parameter.grad = None


def _one_by_one(
    models: Sequence[toy.ShapesModel], weights: Sequence[Sequence[torch.Tensor]], data: Shapes, seeds: Sequence[int],
    epochs: int, batch: int, lr: float,
) -> None:  # fmt: skip
    for model, before, seed in zip(models, weights, seeds, strict=True):
        _restore(model, before)
        toy.train(model, data, epochs=epochs, batch=batch, lr=lr, seed=seed)
