"""What benchmarks count, time and demand: formulas, the clock, the rule against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench.speed import rule
from bench.speed.cases import Case, Size, cases, draw
from bench.speed.ceilings import floor_us
from bench.speed.clock import Clock, Live
from bench.speed.layers import checked_lengths, layers
from bench.speed.rivals import attention_cores, attention_layers
from bench.speed.session import moved
from bench.speed.settings import BenchSettings
from tests.kernel_rule import Seen
from tokmix.ops import dispatch

SIZE = Size(2, 48, 32, 16)
CASES = cases(16)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# --- formulas --------------------------------------------------------------------------------------------------------


@each_case
def test_formulas_of_products_stand_in_reason_to_what_torch_counts(case: Case) -> None:
    """A formula counts what the op cannot do without: never more than plain torch does, but for the outer products that it does
    as pointwise work, and never a small part of it."""
    given = draw(case.shapes(SIZE), torch.float32, "cpu")
    with FlopCounterMode(display=False) as counter:
        case.plain(given)
    found, formula = counter.get_total_flops(), case.flops(SIZE)
    if case.name.startswith(("hyper_mlp", "hyper_glu")):  # torch multiplies the half that the mask throws away, too
        assert formula == found * (SIZE.length + 1) // (2 * SIZE.length)
    elif case.name.startswith("causal") and "blocks" not in case.name:  # torch sums a chunk's states by a product of its own
        assert 0 < formula < found
    elif "d' =" in case.name:  # the textbook's products grow with d', those of a token do not once they are re-associated
        assert 0 < formula < 0.5 * found
    elif case.name.startswith("hyper_mix"):
        assert 0.5 * found <= formula <= found
    else:
        assert formula == found


@pytest.mark.skipif(not dispatch.HAS_TRITON, reason="triton is not installed")
@each_case
def test_plain_torch_is_what_a_kernel_is_judged_by(case: Case) -> None:
    """A body that ran in both places would be compared with itself. On "meta" nothing is computed."""
    given = draw(case.shapes(SIZE), torch.bfloat16, "meta")
    ran = []
    for body in (case.body, case.plain):
        with dispatch.implementation("triton"), Seen() as seen:
            body(given)
        ran.append(bool(seen.ours))
    assert ran == [True, False]


def test_with_a_backward_pass_there_are_three_times_the_products() -> None:
    case = next(case for case in CASES if case.name == "shift_mix, matrix")
    leaves = {name: tensor.requires_grad_() for name, tensor in draw(case.shapes(SIZE), torch.float32, "cpu").items()}
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(case.plain(leaves).sum(), list(leaves.values()))
    assert counter.get_total_flops() == 3 * case.flops(SIZE)


@pytest.mark.parametrize("causal", [False, True])
def test_products_of_attention(causal: bool) -> None:
    for rival in [*attention_cores(32, causal, "cpu"), *attention_layers(32, causal, "cpu")]:
        with FlopCounterMode(display=False) as counter:
            rival.plain(draw(rival.shapes(SIZE), torch.float32, "cpu"))
        scores = 4 * SIZE.rows * SIZE.length**2 * SIZE.dim
        unused = scores - scores * (SIZE.length + 1) // (2 * SIZE.length) if causal else 0
        assert rival.flops(SIZE) == counter.get_total_flops() - unused


def test_a_shift_moves_five_activations_forward_and_backward() -> None:
    """Forward x and y, backward x, dy and dx; the weights hardly count."""
    case = next(case for case in CASES if case.name == "shift_mix, vector")
    given = draw(case.shapes(SIZE), torch.bfloat16, "cpu")
    activation, weights = 2 * SIZE.rows * SIZE.length * SIZE.dim, 2 * 2 * SIZE.dim
    assert moved(list(given.values()), given["x"], backward=True) == 5 * activation + 3 * weights
    assert moved(list(given.values()), given["x"], backward=False) == 2 * activation + weights


def test_the_floor_is_what_binds() -> None:
    ceilings = {"copy_gbs": 1000.0, "matmul_tflops": 10.0}
    assert floor_us(ceilings, flops=0, moved=5e9) == pytest.approx(5000)
    assert floor_us(ceilings, flops=2e12, moved=5e9) == pytest.approx(200_000)


# --- clock -----------------------------------------------------------------------------------------------------------


def test_memory_is_what_lives_at_once() -> None:
    x = torch.randn(1000)
    with Live() as live:
        a = x * 2  # 4,000 bytes
        b = a + 1
        del a
        c = b.view(10, 100) * 3  # a view is no memory
        del b
    assert live.peak == 8000 and live.now == 4000 and c.shape == (10, 100)


def test_a_clock_calls_as_often_as_it_says() -> None:
    calls = []
    timing = Clock(seconds=0.0, least=4)(lambda: calls.append(1))
    assert timing.repeats == 4 and len(calls) == 3 + 4 and timing.how == "clock"
    assert timing.low <= timing.us <= timing.high


# --- the rule --------------------------------------------------------------------------------------------------------


@each_case
def test_every_case_keeps_the_rule(case: Case) -> None:
    torch.manual_seed(0)
    verdicts = rule.check(case.body, case.plain, draw(case.shapes(Size(2, 21, 32, 16)), torch.float32, "cpu"), torch.float32)
    assert all(verdict.holds for verdict in verdicts), [str(verdict) for verdict in verdicts]
    assert {verdict.what.split(" (")[0] for verdict in verdicts} >= {"y"}


def test_a_wrong_gradient_and_a_nan_break_the_rule() -> None:
    given = {"x": torch.randn(20, 20)}
    right = lambda t: t["x"] * 2
    for wrong in (
        lambda t: t["x"].detach() + t["x"],
        lambda t: t["x"] * 2 + torch.where(t["x"] > 0, torch.nan, 0),
        lambda t: t["x"] * 2.001,
    ):
        assert not all(verdict.holds for verdict in rule.check(wrong, right, given, torch.float32))
    assert all(verdict.holds for verdict in rule.check(right, right, given, torch.float32))


def test_memory_that_nobody_wrote_is_seen() -> None:
    def lazy(t: dict[str, Tensor]) -> Tensor:
        y = torch.empty_like(t["x"])
        y[1:] = t["x"][1:] * 2
        return y

    verdicts = rule.check(lazy, lambda t: t["x"] * 2, {"x": torch.randn(300, 1)}, torch.float32)
    assert not verdicts[0].holds


def test_long_sequences_are_checked_where_sums_over_them_could_lose_digits() -> None:
    asked = BenchSettings("layers", lengths=(512, 8192, 65536))
    found = {made.name: checked_lengths(asked, made, "cuda") for made in layers(512, 64)}
    assert found["hypermixing, one head, tied"] == found["hypermixing, heads of 64, untied"] == [333, 512, 65536]
    assert found["hypermlp"] == found["fnet"] == [333, 512]  # float64 could not
    assert checked_lengths(asked, layers(512, 64)[0], "cpu") == [333, 512]
