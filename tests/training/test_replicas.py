"""Models trained side by side are the models that each would be alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.mixer import mixer_class, mixers
from tokmix.core.model import Model, ModelConfig
from tokmix.core.segments import Segments
from tokmix.training import replicas

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

    def loss(self, model: nn.Module, index: Tensor, width: int) -> Tensor:
        """index [K, B] -> [K]"""
        rows = index.flatten()
        segments = Segments.padded(self.lengths[rows].clamp(max=width), width)
        losses = F.cross_entropy(model(self.ids[rows][:, :width], segments), self.labels[rows], reduction="none")
        return losses.view_as(index).mean(1)


def batches(members: int, steps: int) -> Iterator[tuple[int, Tensor]]:
    """Of two widths; member k's rows do not depend on how many members there are."""
    for step in range(steps):
        rows = [torch.randint(0, ROWS, (BATCH,), generator=torch.Generator().manual_seed(1000 * step + k)) for k in range(members)]
        yield (T if step % 3 else T // 2), torch.stack(rows)


RECIPE = replicas.Recipe(steps=9, warmup=2, schedule="cosine", lowest=1e-4, clip=0.5, precision="float32")


def trained(members: list[replicas.Replica], device: str = "cpu", recipe: replicas.Recipe = RECIPE) -> list[tuple[int, list[float]]]:
    told: list[tuple[int, list[float]]] = []
    steps = batches(len(members), recipe.steps)
    replicas.train(members, Data(device).loss, steps, recipe, torch.device(device), every=4, report=lambda *one: told.append(one))
    return told


def by_hand(one: Model, lr: float, weight_decay: float, place: int) -> list[float]:
    """The loop that anybody would write."""
    data, losses = Data(), []
    optimizer = torch.optim.AdamW(one.parameters(), lr, weight_decay=weight_decay)
    for step, (width, index) in enumerate(batches(place + 1, RECIPE.steps)):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE.rates(lr)[step]
        (loss,) = data.loss(one, index[place : place + 1], width)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(one.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_each_member_is_what_a_plain_loop_makes_of_it() -> None:
    members = [replicas.Replica(model(0), 1e-2), replicas.Replica(model(1), 3e-3, weight_decay=0.1)]
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
    rates = replicas.Recipe(steps=6, warmup=2, schedule="cosine", lowest=0.1).rates(1.0)
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[4] == pytest.approx(0.55) and rates == sorted(rates[:1]) + sorted(rates[1:], reverse=True)
    assert replicas.Recipe(steps=4, warmup=2).rates(1.0) == [0.5, 1.0, 1.0, 1.0]


def test_half_precision_learns_on_the_wide_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 has 8 bits: a step of 1e-4 is lost on a weight of 1, unless the weight itself is kept in float32. The layers of the copy are
    compiled; here by a backend that needs no compiler."""
    monkeypatch.setattr(replicas, "BACKEND", "aot_eager")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    recipe = replicas.Recipe(steps=9, warmup=2)
    wide, half = (
        replicas.Trainer([replicas.Replica(model(0), 1e-3)], recipe, Data().loss, torch.device("cpu"), half) for half in (False, True)
    )
    for width, index in batches(1, 9):
        wide.advance(index, width)
        half.advance(index, width)
    assert float(half.totals) == pytest.approx(float(wide.totals), rel=0.02)
    moved = [(a - b).norm() for a, b in zip(half.own[0].weights, wide.own[0].weights, strict=True)]
    way = [(a - b).norm() for a, b in zip(wide.own[0].weights, model(0).parameters(), strict=True)]
    assert torch.stack(moved).norm() < 0.3 * torch.stack(way).norm()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= before + 2, "a graph for each layer"
    assert half.stack is not None
    assert half.own[0].weights[0].dtype == torch.float32 and next(half.stack.parameters()).dtype == torch.bfloat16


def test_a_step_without_a_finite_gradient_is_left_out() -> None:
    """Rows whose loss is infinite: the weights stay as they are, the step counts as left out and not in the mean loss."""
    data, one = Data(), replicas.Replica(model(0), 1e-2)
    bad = (3, 7)

    def loss(net: nn.Module, index: Tensor, width: int) -> Tensor:
        broken = torch.tensor([math.inf if int(rows[0]) < 0 else 1.0 for rows in index])
        return data.loss(net, index.abs(), width) * broken

    def steps() -> Iterator[tuple[int, Tensor]]:
        for number, (width, index) in enumerate(batches(1, RECIPE.steps)):
            yield width, -index.clamp(min=1) if number in bad else index

    told: list[tuple[int, list[float]]] = []
    before: list[Tensor] = []

    def report(step: int, losses: list[float]) -> None:
        told.append((step, losses))
        before.append(next(one.model.parameters()).detach().clone())

    assert replicas.train([one], loss, steps(), RECIPE, torch.device("cpu"), every=1, report=report) == [2]
    assert [step for step, losses in told if math.isnan(losses[0])] == [number + 1 for number in bad]
    for number in range(1, RECIPE.steps):
        assert torch.equal(before[number], before[number - 1]) == (number in bad)


STACKS = ["hypermixing(hidden=16), mlp_mixer(hidden=8)", "attention(heads=2), shared_vector"]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_trains_as_each_alone(stack: str) -> None:
    """As on a GPU, but for recording: one stack of all, each at its own rate. In double precision, since Adam makes steps of rounding
    errors where a gradient is zero."""
    device, rates = torch.device("cpu"), (1e-2, 3e-3, 1e-3)
    members = [replicas.Replica(model(seed, stack).double(), lr) for seed, lr in enumerate(rates)]
    together = replicas.Trainer(members, RECIPE, Data().loss, device, half=False)
    alone = [
        replicas.Trainer([replicas.Replica(model(seed, stack).double(), lr)], RECIPE, Data().loss, device, False)
        for seed, lr in enumerate(rates)
    ]
    assert together.stack is not None and alone[0].stack is None
    for width, index in batches(3, RECIPE.steps):
        together.advance(index, width)
        for place, one in enumerate(alone):
            one.advance(index[place : place + 1], width)
    torch.testing.assert_close(together.totals, torch.cat([one.totals for one in alone]))
    for ours, theirs in zip(together.own, alone, strict=True):
        torch.testing.assert_close(ours.weights, theirs.own[0].weights, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("stack", STACKS)
def test_a_compiled_stack_in_half_precision_learns(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BACKEND", "aot_eager")
    wide, half = (
        replicas.Trainer([replicas.Replica(model(seed, stack), 1e-3) for seed in range(3)], RECIPE, Data().loss, torch.device("cpu"), half)
        for half in (False, True)
    )
    for width, index in batches(3, RECIPE.steps):
        wide.advance(index, width)
        half.advance(index, width)
    assert half.totals.tolist() == pytest.approx(wide.totals.tolist(), rel=0.02)


def test_members_are_stacked_by_twos_and_nobody_is_left_over() -> None:
    sizes = lambda count: sorted(len(part) for part in replicas._parts(list(range(count))))
    assert [sizes(count) for count in (1, 2, 3, 5, 6, 7)] == [[1], [2], [3], [2, 3], [2, 2, 2], [2, 2, 3]]
    assert sorted(place for part in replicas._parts([4, 7, 9, 11, 12]) for place in part) == [4, 7, 9, 11, 12]


def test_too_few_batches_are_an_error() -> None:
    with pytest.raises(ValueError, match="9 steps, but there were 2 batches"):
        replicas.train(
            [replicas.Replica(model(0), 1e-3)], Data().loss, batches(1, 2), RECIPE, torch.device("cpu"), every=9, report=lambda *_: None
        )  # fmt: skip


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
    on_gpu, on_cpu = ([replicas.Replica(model(seed, f"{name}*2").double(), 1e-3) for seed in range(3)] for _ in range(2))
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
    on_gpu, on_cpu = ([replicas.Replica(model(seed, f"{name}*2"), 1e-3) for seed in range(3)] for _ in range(2))
    for (_, ours), (_, theirs) in zip(trained(on_gpu, "cuda", recipe), trained(on_cpu), strict=True):
        assert ours == pytest.approx(theirs, rel=0.03)
