"""A small model for the task of shapes, around any token mixer, and its training (Mai et al. 2023, section 4.7).

    x [B, T] ─> conv ReLU conv ReLU ─> token mixer, no residual ─> conv ReLU conv ─> y [B, T]

The convolutions see eight positions each way; only the mixer can carry a height further than that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduce.toy.convolve import convolve
from reproduce.toy.data import LENGTH, Shapes, draw
from tokmix.core import checks
from tokmix.core.mixer import Cost, Mixer, create
from tokmix.core.seeds import seeded
from tokmix.core.stack import parse
from tokmix.training import replicas
from tokmix.training.synthetic import in_order

WIDTH, KERNEL = 64, 5
# As in the paper: tied HyperMixing of d' = 64 with LayerNorm; attention of one head, without biases and 1/sqrt(d).
ITEMS = {
    "none": "none",
    "mlp_mixer": "mlp_mixer",
    "attention": "attention(heads=1, bias=False, scale=1.0)",
    "hypermixing": "hypermixing(hidden=64)",
}


class Conv(nn.Conv1d):
    """[B, T, C] -> [B, T, C']. As a convolution of two dimensions, which torch runs on channels-last memory as it is:
    no transpose on either side of the mixer, and faster on a CPU."""

    def __init__(self, width: int, out: int):
        super().__init__(width, out, KERNEL)

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x.mT[:, :, None], self.weight[:, :, None], self.bias, padding=(0, KERNEL // 2))
        return y[:, :, 0].mT


class ShapesModel(nn.Module):
    """item: one item of a stack, such as "attention(heads=1)", or "none": one more convolution in the mixer's place."""

    mean: Tensor
    std: Tensor

    def __init__(self, item: str):
        super().__init__()
        self.item = item
        self.front = nn.Sequential(Conv(1, WIDTH), nn.ReLU(), Conv(WIDTH, WIDTH), nn.ReLU())
        self.middle: nn.Module = nn.Sequential(Conv(WIDTH, WIDTH), nn.ReLU()) if item == "none" else mixer(item)
        self.back = nn.Sequential(Conv(WIDTH, WIDTH), nn.ReLU(), Conv(WIDTH, 1))
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("std", torch.tensor(1.0))

    def standardise(self, inputs: Tensor) -> None:
        """Remember the training set's statistics: from now on they are taken out of every input."""
        self.mean.copy_(inputs.mean())
        self.std.copy_(inputs.std())

    def tokens(self, x: Tensor) -> Tensor:
        """What the mixer is given: [B, T] -> [B, T, 64]."""
        return self.front(((x - self.mean) / self.std)[..., None])

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.middle(self.tokens(x)))[..., 0]

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def cost(self) -> Cost:
        """Of what stands in the middle, for one sequence."""
        if isinstance(self.middle, Mixer):
            return self.middle.cost(LENGTH)
        return Cost(matmul=2 * KERNEL * WIDTH * WIDTH * LENGTH, pointwise=WIDTH * LENGTH)

    def whole_cost(self) -> Cost:
        """Of the convolutions before and behind it too."""
        return Cost(matmul=2 * KERNEL * LENGTH * (2 * WIDTH * WIDTH + 2 * WIDTH), pointwise=3 * WIDTH * LENGTH) + self.cost()


def mixer(item: str) -> Mixer:
    specs = parse(item)
    if len(specs) != 1:
        raise ValueError(f"the task of shapes takes one mixer, but {item!r} holds {len(specs)}")
    return create(specs[0].name, WIDTH, causal=False, max_len=LENGTH, layer=0, **specs[0].options)


class Taps(nn.Module):
    """A convolution and the ReLU behind it as one kernel, with weights of its own, in the order that the kernel reads them in."""

    def __init__(self, conv: Conv, relu: bool):
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
    return nn.Sequential(*(Taps(layer, isinstance(behind, nn.ReLU)) for layer, behind in pairs if isinstance(layer, Conv)))


class Fused(nn.Module):
    """The same model, with convolutions that are quick on a GPU; it has the model's new weights after write_back()."""

    def __init__(self, model: ShapesModel):
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


def build(item: str, train_set: Shapes, seed: int) -> ShapesModel:
    """A fresh model of that seed, on the training set's device and knowing its statistics."""
    with seeded(seed):
        model = ShapesModel(item)
    model.to(train_set.inputs.device).standardise(train_set.inputs)
    return model


@dataclass(frozen=True)
class Progress:
    epoch: int
    seconds: float
    error: float  # 100 x mean squared error on the training set, over the epoch (or what there was of it)


def train(
    model: ShapesModel,
    data: Shapes,
    *,
    epochs: int = 250,
    seconds: float | None = None,
    batch: int = 100,
    lr: float = 1e-3,
    seed: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Adam on the mean squared error, for that many epochs or seconds, whichever ends first."""
    checks.at_least("epochs", epochs, 1)
    checks.at_least("batch", batch, 1)
    start, progress = time.perf_counter(), Progress(0, 0.0, float("nan"))

    def note(epoch: int, losses: list[float]) -> None:
        nonlocal progress
        progress = Progress(epoch, time.perf_counter() - start, 100 * losses[0])
        if report is not None:
            report(progress)

    def late() -> bool:
        return seconds is not None and time.perf_counter() - start > seconds

    train_all([model], [data], [seed], epochs=epochs, batch=batch, lr=lr, report=note, stop=late)
    return progress


def train_all(
    models: Sequence[ShapesModel],
    sets: Sequence[Shapes],
    seeds: Sequence[int],
    *,
    epochs: int = 250,
    batch: int = 100,
    lr: float = 1e-3,
    precision: str = "float32",
    fused: bool | None = None,
    report: Callable[[int, list[float]], None] = lambda epoch, losses: None,
    stop: Callable[[], bool] = lambda: False,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Models side by side, each on its own training set (of one size) with the batches of its seed. report(epoch, losses) after each
    epoch, when the models have the weights of then. fused: with convolution and ReLU as one kernel, as on a GPU. begin, stop: as
    replicas.train has them."""
    rows = len(sets[0])
    a_pass, device = -(-rows // batch), sets[0].inputs.device
    fused = device.type == "cuda" if fused is None else fused
    trained: list[nn.Module] = [Fused(model.train()) if fused else model for model in models]

    def note(step: int, losses: list[float]) -> None:
        for one in trained:
            if isinstance(one, Fused):
                one.write_back()
        report(-(-step // a_pass), losses)

    members = [replicas.Replica(one, squared_error(data), lr) for one, data in zip(trained, sets, strict=True)]
    recipe = replicas.Recipe(epochs * a_pass, clip=None, precision=precision)
    replicas.train(
        members, in_order(rows, batch, epochs, seeds), recipe, device, every=a_pass, report=note, stop=stop, begin=lambda _: begin()
    )


def squared_error(data: Shapes) -> replicas.Loss:
    return lambda forward, index, width: F.mse_loss(forward(data.inputs[index]), data.targets[index])


@torch.no_grad()
def predict(model: ShapesModel, inputs: Tensor, batch: int = 500) -> Tensor:
    """[n, T] -> [n, T]"""
    model.eval()
    return torch.cat([model(part) for part in inputs.split(batch)])


def error(model: ShapesModel, data: Shapes) -> float:
    """100 x the mean squared error per element, as the paper's Figure 5b has it. The noise alone makes 0.75."""
    return 100 * float(F.mse_loss(predict(model, data.inputs), data.targets))


@dataclass(frozen=True)
class Pairs:
    """A quantity between two shapes, averaged over those of one kind and over those of different kinds."""

    partner: float
    stranger: float


def response(model: ShapesModel, data: Shapes) -> Pairs:
    """What the other shapes of the output do when one shape of the input is raised by 1. A perfect model raises the
    other one of its kind by 0.5 and moves none else, so `stranger` averages movements without their signs."""
    ones = draw(data.centres, torch.ones_like(data.heights), data.widths)  # [n, 4, T], each shape at height 1
    raised = (data.inputs[:, None] + ones).flatten(0, 1)
    moved = predict(model, raised).view_as(ones) - predict(model, data.inputs)[:, None]  # [n, 4, T], by shape raised
    rise = moved @ ones.mT / ones.square().sum(-1)[:, None]  # [n, 4, 4], raised by risen: least squares
    partner, stranger = _pairs(rise.device)
    return Pairs(float(rise[:, partner].mean()), float(rise[:, stranger].abs().mean()))


def affinity(maps: Tensor, data: Shapes) -> Pairs:
    """How strongly the tokens of a shape read those of the other shapes. maps [n, T, T], reader by read."""
    inside = data.covered().to(maps.dtype)  # [n, 4, T]
    size = inside.sum(-1)
    means = (inside @ maps @ inside.mT) / (size[:, :, None] * size[:, None])  # [n, 4, 4], shape by shape
    partner, stranger = _pairs(maps.device)
    return Pairs(float(means[:, partner].mean()), float(means[:, stranger].mean()))


def _pairs(device: torch.device) -> tuple[Tensor, Tensor]:
    """[4, 4] bool: two different shapes of one kind, and shapes of different kinds."""
    kind = torch.tensor([0, 0, 1, 1], device=device)
    same = kind[:, None] == kind
    return same & ~torch.eye(4, dtype=torch.bool, device=device), ~same
