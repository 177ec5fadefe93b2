"""FLOPs of a stack by layer and length, from the mixers' own formulas. The model is on the meta device and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from tokmix.core import stack as stacks
from tokmix.core.block import Layer
from tokmix.core.checks import at_least
from tokmix.core.mixer import Cost
from tokmix.core.model import ModelConfig
from tokmix.core.outline import outline
from tokmix.study.cost.crossing import FARTHEST, Crossing, crossing


@dataclass(frozen=True)
class Shape:
    """The settings that all stacks of a comparison share."""

    dim: int = 256
    vocab: int = 30522
    feed_forward: int | str = "auto"
    causal: bool = False
    layout: str = "pre"


@dataclass(frozen=True)
class Group:
    """Neighbouring layers that cost the same."""

    first: int
    last: int
    mixer: str
    each: list[Cost]  # of one of them, by length

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def places(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first}-{self.last}, each"


class Priced:
    """A stack with its costs at some lengths."""

    def __init__(self, stack: str, lengths: Sequence[int], shape: Shape, farthest: int = FARTHEST):
        for length in lengths:
            at_least("length", length, 1)
        at_least("farthest", farthest, 1)
        self.lengths, self.shape = list(lengths), shape
        self.config = ModelConfig(
            stack=stack,
            dim=shape.dim,
            vocab=shape.vocab,
            head="lm" if shape.causal else "mlm",
            causal=shape.causal,
            max_len=max(farthest, *self.lengths),
            feed_forward=shape.feed_forward,
            layout=shape.layout,
        )
        self.model = outline(self.config)
        self.layers = [[layer.cost(length) for length in self.lengths] for layer in self.model.layers]
        self.total = [self.model.cost(length) for length in self.lengths]
        self.output = [_less(whole, sum(parts, Cost())) for whole, parts in zip(self.total, zip(*self.layers, strict=True), strict=True)]

    @property
    def name(self) -> str:
        return self.config.stack

    @cached_property
    def groups(self) -> list[Group]:
        found: list[Group] = []
        for place, (layer, costs) in enumerate(zip(self.model.layers, self.layers, strict=True)):
            kind = layer.mixer.kind
            if found and found[-1].mixer == kind and _flops(found[-1].each) == _flops(costs):
                found[-1] = Group(found[-1].first, place, kind, found[-1].each)
            else:
                found.append(Group(place, place, kind, costs))
        return found

    def curves(self, farthest: int) -> list[tuple[int, int]]:
        """(matrix products, those and the rest) of all layers at lengths 0 to farthest. The output layer is the same for
        every stack of a comparison and left out."""
        kinds: dict[str, tuple[Layer, int]] = {}  # computed once for layers of the same kind, options and cost
        for layer, spec, costs in zip(self.model.layers, stacks.parse(self.name), self.layers, strict=True):
            key = f"{stacks.unparse([spec])} {_flops(costs)}"
            kinds[key] = (layer, kinds.get(key, (layer, 0))[1] + 1)
        found = [(0, 0)]
        for length in range(1, farthest + 1):
            at = [(layer.cost(length), count) for layer, count in kinds.values()]
            matmul = sum(count * cost.matmul for cost, count in at)
            found.append((matmul, matmul + sum(count * cost.pointwise for cost, count in at)))
        return found

    def record(self) -> dict[str, object]:
        layers = []
        for place, (layer, costs) in enumerate(zip(self.model.layers, self.layers, strict=True)):
            alone = [layer.mixer.cost(length).matmul for length in self.lengths]
            layers.append({"layer": place, "mixer": layer.mixer.kind, **_columns(costs), "mixer_matmul": alone})
        total = _columns(self.total)
        return {
            "stack": self.name,
            "dim": self.shape.dim,
            "feed_forward": self.config.feed_forward,
            "causal": self.shape.causal,
            "lengths": self.lengths,
            "layers": layers,
            "output": _columns(self.output),
            "total": total,
            "per_token": {name: [flops / n for flops, n in zip(total[name], self.lengths, strict=True)] for name in total},
        }


def _columns(costs: Sequence[Cost]) -> dict[str, list[int]]:
    return {name: [getattr(cost, name) for cost in costs] for name in ("matmul", "pointwise", "training")}


def _flops(costs: Sequence[Cost]) -> list[tuple[int, int, int]]:
    """FLOPs without the state size, which may differ between layers of equal FLOPs."""
    return [(cost.matmul, cost.pointwise, cost.training) for cost in costs]


def _less(whole: Cost, part: Cost) -> Cost:
    recomputed, constant = whole.recomputed - part.recomputed, whole.constant - part.constant
    return Cost(whole.matmul - part.matmul, whole.pointwise - part.pointwise, recomputed=recomputed, constant=constant)


@dataclass(frozen=True)
class Pair:
    a: str
    b: str
    matmul: Crossing
    with_pointwise: Crossing

    def record(self) -> dict[str, object]:
        shown: dict[str, object] = {"a": self.a, "b": self.b, "looked_at": [1, self.matmul.farthest]}
        for name, met in (("matmul", self.matmul), ("with_pointwise", self.with_pointwise)):
            less = {"a": self.a, "b": self.b, None: None}[met.winner]
            shown[name] = {"less": less, "from": met.start, "a_less": met.a_less, "b_less": met.b_less}
        return shown


def pairs(priced: Sequence[Priced], farthest: int = FARTHEST) -> list[Pair]:
    """Every pair of stacks."""
    curves = [one.curves(farthest) for one in priced] if len(priced) > 1 else []
    found = []
    for i, j in combinations(range(len(priced)), 2):
        met = [crossing(lambda n, w=way: curves[i][n][w], lambda n, w=way: curves[j][n][w], farthest) for way in (0, 1)]  # type: ignore[misc]  # noqa: B023
        found.append(Pair(priced[i].name, priced[j].name, *met))
    return found
