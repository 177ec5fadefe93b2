"""Small models trained side by side on one GPU.

A step of such a model is a hundred kernels of a few microseconds each, and starting them takes longer than they run. So an epoch,
or a piece of a long one, is recorded once as a CUDA graph, which is started as one, and each model has a stream of its own, so
that they fill the GPU together. The numbers are those of toy.train: the same batches in the same order, the same optimizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tokmix.data.synthetic.shapes import Shapes
from tokmix.ops.convolve import convolve
from tokmix.training import toy
from tokmix.training.optimizers import Optimizers

WARM = 3  # steps before recording, in which libraries and kernels choose their way
PIECE = 50  # steps of a recording at most: it takes a few milliseconds to record each


def pieces(rows: int, batch: int) -> list[slice]:
    """An epoch over so many rows, cut into pieces of whole batches: all of one length but the last."""
    length = batch * min(PIECE, -(-rows // batch))
    return [slice(first, min(first + length, rows)) for first in range(0, rows, length)]


class Taps(nn.Module):
    """A convolution and the ReLU behind it as one kernel, with weights of its own, in the order that the kernel reads them in."""

    def __init__(self, conv: toy.Conv, relu: bool):
        super().__init__()
        assert conv.bias is not None
        self.of, self.relu = [conv], relu  # in a list: its weights are no parameters of this module
        self.weight = nn.Parameter(conv.weight.detach().permute(2, 1, 0).contiguous())
        self.bias = conv.bias

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, self.relu)

    @torch.no_grad()
    def write_back(self) -> None:
        self.of[0].weight.copy_(self.weight.permute(2, 1, 0))


def _taps(layers: nn.Module) -> nn.Sequential:
    pairs = itertools.pairwise([*layers.children(), None])
    return nn.Sequential(*(Taps(layer, isinstance(behind, nn.ReLU)) for layer, behind in pairs if isinstance(layer, toy.Conv)))


class Fused(nn.Module):
    """The same model, with convolutions that are quick on a GPU; it has the model's new weights after write_back()."""

    def __init__(self, model: toy.ShapesModel):
        super().__init__()
        self.front, self.back = _taps(model.front), _taps(model.back)
        self.middle = _taps(model.middle) if isinstance(model.middle, nn.Sequential) else model.middle
        self.mean, self.std = model.mean, model.std

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.middle(self.front(((x - self.mean) / self.std)[..., None])))[..., 0]

    def write_back(self) -> None:
        for module in self.modules():
            if isinstance(module, Taps):
                module.write_back()


class Recorded:
    """An epoch of one model."""

    def __init__(self, model: toy.ShapesModel, data: Shapes, batch: int, lr: float):
        self.model, self.data, self.batch = Fused(model.train()), data, batch
        self.stream = torch.cuda.Stream(data.inputs.device)
        self.pieces = pieces(len(data), batch)
        self.order = torch.arange(self.pieces[0].stop, device=data.inputs.device)  # what a piece reads, in this order; filled before each
        # capturable: its count of steps stands on the GPU, where the recording can raise it
        self.optimizers = Optimizers(self.model.named_parameters(), lr, capturable=True)
        self._warm_up()
        self.graphs = {length: self._record(length) for length in {piece.stop - piece.start for piece in self.pieces}}

    def _record(self, length: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._steps(self.order[:length])
        return graph

    def _steps(self, order: Tensor) -> None:
        inputs, targets = self.data.inputs[order], self.data.targets[order]
        for some, wanted in zip(inputs.split(self.batch), targets.split(self.batch), strict=True):
            toy.step(self.model, self.optimizers, some, wanted)

    def _reset(self, weights: Sequence[Tensor]) -> None:
        """As if the warm-up had not been; in place, since the recording knows places and not values."""
        _restore(self.model, weights)
        self.optimizers.reset()

    def _warm_up(self) -> None:
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._steps(self.order[: WARM * self.batch])
            if len(self.data) % self.batch:  # the last batch is smaller
                self._steps(self.order[: len(self.data) % self.batch])
        torch.cuda.current_stream().wait_stream(self.stream)
        self._reset(weights)
        torch.cuda.synchronize()

    def replay(self, order: Tensor, piece: int) -> None:
        with torch.cuda.stream(self.stream):
            rows = order[self.pieces[piece]]
            self.order[: len(rows)].copy_(rows)
            self.graphs[len(rows)].replay()


def train(
    models: Sequence[toy.ShapesModel],
    data: Shapes | Sequence[Shapes],
    seeds: Sequence[int],
    epochs: int,
    begin: Callable[[], None] = lambda: None,
    batch: int = 100,
    lr: float = 1e-3,
    report: Callable[[int], None] | None = None,
    last: int = 0,
    eager: bool = True,
) -> None:
    """Every model with the batches of its seed, all at a time; on one training set, or each on its own of the same size. begin() is
    called when all is recorded and training starts: what the first use of a library or the compiling of a kernel takes is no part
    of it. report(epoch) after each of the last so many epochs: the models have the weights of then. eager: where a model cannot be
    recorded, train step by step, many times slower, instead of raising."""
    sets = [data] * len(models) if isinstance(data, Shapes) else list(data)
    orders = _orders(sets, seeds, epochs)
    weights = [[parameter.detach().clone() for parameter in model.parameters()] for model in models]
    try:
        recorded = [Recorded(model, own, batch, lr) for model, own in zip(models, sets, strict=True)]
    except RuntimeError:  # a mixer that looks at its numbers on the host cannot be recorded
        if not eager:
            raise
        torch.cuda.synchronize()
        begin()
        _one_by_one(models, weights, sets, seeds, epochs, batch, lr)
        return  # and nothing to report: they end one after the other
    begin()
    for epoch in range(1, epochs + 1):
        for piece in range(len(recorded[0].pieces)):
            for one, order in zip(recorded, orders, strict=True):
                one.replay(order[epoch - 1], piece)
        if epoch == epochs or epoch > epochs - last:
            torch.cuda.synchronize()
            for one in recorded:
                one.model.write_back()
            if report is not None and epoch > epochs - last:
                report(epoch)
            torch.cuda.synchronize()  # the models' own streams do not wait for what was read just now


def _orders(sets: Sequence[Shapes], seeds: Sequence[int], epochs: int) -> list[Tensor]:
    """[epochs, rows] for every model; those of one seed and size share theirs."""
    made: dict[tuple[int, int], Tensor] = {}
    for data, seed in zip(sets, seeds, strict=True):
        if (seed, len(data)) not in made:
            chance = torch.Generator().manual_seed(seed)
            order = torch.stack([torch.randperm(len(data), generator=chance) for _ in range(epochs)])
            made[seed, len(data)] = order.to(data.inputs.device)
    return [made[seed, len(data)] for data, seed in zip(sets, seeds, strict=True)]


@torch.no_grad()
def _restore(model: nn.Module, weights: Sequence[Tensor]) -> None:
    for parameter, before in zip(model.parameters(), weights, strict=True):
        parameter.copy_(before)
        parameter.grad = None


def _one_by_one(
    models: Sequence[toy.ShapesModel], weights: Sequence[Sequence[Tensor]], sets: Sequence[Shapes], seeds: Sequence[int],
    epochs: int, batch: int, lr: float,
) -> None:  # fmt: skip
    for model, before, data, seed in zip(models, weights, sets, seeds, strict=True):
        _restore(model, before)
        toy.train(model, data, epochs=epochs, batch=batch, lr=lr, seed=seed)
