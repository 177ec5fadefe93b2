"""Models trained side by side are the models that each would be alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.mixer import mixer_class, mixers
from tokmix.core.model import Model, ModelConfig
from tokmix.core.segments import Segments
from tokmix.training import replicas
from tokmix.training.distributed import World
from tokmix.training.layer_modes import compile_layers
from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated
from tokmix.training.static_shapes import Rows
from tokmix.training.step import Forward, Step

pytestmark = pytest.mark.filterwarnings(
    "ignore:The AccumulateGrad node's stream",
    "ignore:The .grad attribute of a Tensor that is not a leaf",  # dynamo looks at what it traces,
    "ignore:\\s*Online softmax is disabled",  # inductor, of heads too narrow for any attention kernel
    "ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning",  # and makes one of those
)

T, ROWS, BATCH = 12, 40, 8
BOTH_WAYS = [name for name in mixers() if {"bidirectional", "padded"} <= mixer_class(name).modes]


def config(stack: str = "hypermixing(hidden=16), attention(heads=2, bias=False)") -> ModelConfig:
    return ModelConfig(stack=stack, dim=16, vocab=50, head="classify", causal=False, max_len=T)


def model(seed: int, stack: str = "hypermixing(hidden=16), attention(heads=2, bias=False)") -> Model:
    torch.manual_seed(seed)
    return Model(config(stack))


class Data:
    def __init__(self, device: str = "cpu"):
        chance = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 50, (ROWS, T), generator=chance).to(device)
        self.lengths = torch.randint(1, T + 1, (ROWS,), generator=chance).to(device)
        self.labels = torch.randint(0, 2, (ROWS,), generator=chance).to(device)

    def loss(self, forward: Forward, index: Tensor, width: int) -> Tensor:
        """index [B] -> []"""
        segments = Segments.padded(self.lengths[index].clamp(max=width), width)
        return F.cross_entropy(forward(self.ids[index][:, :width], segments), self.labels[index])


def batches(members: int, steps: int) -> Iterator[tuple[int, Tensor]]:
    """Of two widths; member k's rows do not depend on how many members there are."""
    for step in range(steps):
        rows = [torch.randint(0, ROWS, (BATCH,), generator=torch.Generator().manual_seed(1000 * step + k)) for k in range(members)]
        yield (T if step % 3 else T // 2), torch.stack(rows)


RECIPE = replicas.Recipe(steps=9, warmup=2, schedule="cosine", lowest=1e-4, clip=0.5, precision="float32")


def replica(one: nn.Module, lr: float, device: str = "cpu", **others: Any) -> replicas.Replica:
    return replicas.Replica(one, Data(device).loss, lr, **others)


def trained(members: list[replicas.Replica], device: str = "cpu", recipe: replicas.Recipe = RECIPE) -> list[tuple[int, list[float]]]:
    told: list[tuple[int, list[float]]] = []
    steps = batches(len(members), recipe.steps)
    replicas.train(members, steps, recipe, torch.device(device), every=4, report=lambda *one: told.append(one))
    return told


def weights(one: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in one.parameters()])


def by_hand(one: Model, lr: float, weight_decay: float, place: int) -> list[float]:
    """The loop that anybody would write."""
    data, losses = Data(), []
    optimizer = torch.optim.AdamW(one.parameters(), lr, weight_decay=weight_decay)
    for step, (width, index) in enumerate(batches(place + 1, RECIPE.steps)):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE.rate(lr, step)
        loss = data.loss(one, index[place], width)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(one.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_each_member_is_what_a_plain_loop_makes_of_it() -> None:
    members = [replica(model(0), 1e-2), replica(model(1), 3e-3, weight_decay=0.1)]
    told = trained(members)
    assert [step for step, _ in told] == [4, 8, 9]
    for place, member in enumerate(members):
        alone = model(place)
        losses = by_hand(alone, member.lr, member.weight_decay, place)
        for ours, theirs in zip(member.model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
        spans = [losses[:4], losses[4:8], losses[8:]]
        for (_, means), span in zip(told, spans, strict=True):
            assert means[place] == pytest.approx(sum(span) / len(span), rel=1e-5)


def test_the_rate_rises_then_falls() -> None:
    recipe = replicas.Recipe(steps=6, warmup=2, schedule="cosine", lowest=0.1)
    rates = [recipe.rate(1.0, step) for step in range(6)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[4] == pytest.approx(0.55) and rates == sorted(rates[:1]) + sorted(rates[1:], reverse=True)
    assert [replicas.Recipe(steps=4, warmup=2).rate(1.0, step) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("stack", ["hypermixing(hidden=16), attention(heads=2, bias=False)", "mlp_mixer(hidden=8), shared_vector"])
def test_a_replica_beside_others_is_the_replica_alone(stack: str) -> None:
    """With dropout, at another rate, in another place: the same bits."""

    def made(seed: int) -> replicas.Replica:
        one = Model(replace(config(stack), dropout=0.2 + 0.1 * seed))
        torch.manual_seed(seed)
        for parameter in one.parameters():
            parameter.data.normal_(std=0.1)
        return replica(one, 10.0 ** -(seed + 2), weight_decay=0.01 * seed, seed=seed)

    together = [made(seed) for seed in range(3)]
    trained(together)
    for place, one in enumerate(together):
        alone = made(place)
        only = ((width, index[place:]) for width, index in batches(place + 1, RECIPE.steps))
        replicas.train([alone], only, RECIPE, torch.device("cpu"), every=4, report=lambda *_: None)
        assert torch.equal(weights(one.model), weights(alone.model))
        assert not torch.equal(weights(one.model), weights(made(place).model))


def test_half_precision_learns_on_the_wide_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 has 8 bits: a step of 1e-4 is lost on a weight of 1, unless the weight itself is kept in float32. The layers of the copy are
    compiled; here by a backend that needs no compiler."""
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    wide, half = steps_of("hypermixing(hidden=16), attention(heads=2, bias=False)")
    moved = (weights(half.model) - weights(wide.model)).norm()
    assert moved < 0.3 * (weights(wide.model) - weights(model(0))).norm()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= before + 2, "a graph for each layer"
    assert half.copy is not None and half.parameters[0].dtype == torch.float32
    for wide_weight, copied in zip(half.parameters, half.copy.parameters(), strict=True):
        assert torch.equal(wide_weight.bfloat16(), copied), "the copy follows the weights"


@pytest.mark.parametrize("stack", ["hypermixing(hidden=16), mlp_mixer(hidden=8)", "attention(heads=2), shared_vector"])
def test_a_compiled_copy_in_half_precision_learns(stack: str) -> None:
    steps_of(stack)


def steps_of(stack: str) -> tuple[Step[Rows], Step[Rows]]:
    """A model in float32 and one by a compiled copy in bfloat16, after the same nine steps."""
    recipe, found = replicas.Recipe(steps=9, warmup=2), []
    for half in (False, True):
        one = model(0, stack)
        optimizers = Optimizers(one.named_parameters(), 1e-3, decay_vectors=True)
        alone = Replicated(World())
        alone.module = one
        loss = lambda forward, rows: Data().loss(forward, rows.index, rows.width)
        step: Step[Rows] = Step(one, optimizers, alone, loss, clip=1.0, half_copy=half)
        if step.copy is not None:
            compile_layers(step.copy, "aot_eager")
        found.append(
            (step, [step([Rows(index[0], width)], [None], recipe.rate(1e-3, at)) for at, (width, index) in enumerate(batches(1, 9))])
        )
    (wide, losses), (half_step, others) = found
    assert torch.stack(others)[:, 0].tolist() == pytest.approx(torch.stack(losses)[:, 0].tolist(), rel=0.02)
    return wide, half_step


def test_a_step_without_a_finite_gradient_is_left_out() -> None:
    """Rows whose loss is infinite: the weights stay as they are, the step counts as left out and not in the mean loss."""
    data, bad = Data(), (3, 7)

    def loss(forward: Forward, index: Tensor, width: int) -> Tensor:
        return data.loss(forward, index.abs(), width) * (math.inf if int(index[0]) < 0 else 1.0)

    one = replicas.Replica(model(0), loss, 1e-2)

    def steps() -> Iterator[tuple[int, Tensor]]:
        for number, (width, index) in enumerate(batches(1, RECIPE.steps)):
            yield width, -index.clamp(min=1) if number in bad else index

    told: list[tuple[int, list[float]]] = []
    before: list[Tensor] = []

    def report(step: int, losses: list[float]) -> None:
        told.append((step, losses))
        before.append(next(one.model.parameters()).detach().clone())

    assert replicas.train([one], steps(), RECIPE, torch.device("cpu"), every=1, report=report) == [2]
    assert [step for step, losses in told if math.isnan(losses[0])] == [number + 1 for number in bad]
    for number in range(1, RECIPE.steps):
        assert torch.equal(before[number], before[number - 1]) == (number in bad)


def test_too_few_batches_are_an_error() -> None:
    with pytest.raises(ValueError, match="9 steps, but there were 2 batches"):
        replicas.train([replica(model(0), 1e-3)], batches(1, 2), RECIPE, torch.device("cpu"), every=9, report=lambda *_: None)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_segments_made_on_the_device_are_those_of_the_host(name: str) -> None:
    data, one = Data(), model(0, f"{name}*2").double()
    padded, usual = Segments.padded(data.lengths, T), Segments.from_lengths(data.lengths, T)
    torch.testing.assert_close(one(data.ids, padded), one(data.ids, usual), rtol=0, atol=1e-12)
    for field in ("ids", "mask", "positions", "cu_seqlens", "places"):
        assert torch.equal(getattr(padded, field), getattr(usual, field)), field
    assert padded.chunks is not None and usual.chunks is not None
    assert torch.equal(padded.chunks.table, usual.chunks.table) and torch.equal(padded.chunks.first, usual.chunks.first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_recording_gives_the_numbers_of_the_host(name: str) -> None:
    """In double precision: Adam makes steps of rounding errors where a gradient is zero."""
    on_gpu, on_cpu = ([replica(model(seed, f"{name}*2").double(), 1e-3, at) for seed in range(3)] for at in ("cuda", "cpu"))
    told, wanted = trained(on_gpu, "cuda"), trained(on_cpu)
    for (_, ours), (_, theirs) in zip(told, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["attention", "hypermixing", "fnet", "mlp_mixer", "gmlp"])
def test_a_recording_in_half_precision_learns_the_same(name: str, compiled: bool) -> None:
    recipe = replace(RECIPE, precision="bf16", compiled=compiled)
    on_gpu, on_cpu = ([replica(model(seed, f"{name}*2"), 1e-3, at) for seed in range(3)] for at in ("cuda", "cpu"))
    for (_, ours), (_, theirs) in zip(trained(on_gpu, "cuda", recipe), trained(on_cpu), strict=True):
        assert ours == pytest.approx(theirs, rel=0.03)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_replica_beside_others_is_the_replica_alone() -> None:
    """With dropout, each on a stream and a generator state of its own."""
    recipe, device = replace(RECIPE, compiled=False), torch.device("cuda")

    def made(seed: int) -> replicas.Replica:
        torch.manual_seed(seed)
        return replica(Model(replace(config(), dropout=0.3)), 1e-2, "cuda", seed=seed)

    together = [made(seed) for seed in range(3)]
    trained(together, "cuda", recipe)
    for place, one in enumerate(together):
        alone = made(place)
        only = ((width, index[place:]) for width, index in batches(place + 1, recipe.steps))
        replicas.train([alone], only, recipe, device, every=4, report=lambda *_: None)
        assert torch.equal(weights(one.model), weights(alone.model))
