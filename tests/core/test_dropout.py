"""Dropout by 16 bits a number: its rate, its scale, its gradients, and the generator that it draws from."""

from __future__ import annotations

import pytest
import torch

from tokmix.core.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.97])
def test_it_drops_that_share_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(600, 501, requires_grad=True)
    y = Dropout(rate)(x)
    kept = y != 0
    spread = (rate * (1 - rate) / y.numel()) ** 0.5
    assert abs(float(kept.double().mean()) - (1 - rate)) < 5 * spread
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - rate)), rtol=1e-3, atol=0)
    assert float((y.detach() - 1).mean(0).abs().max()) < 0.05 / (1 - rate) ** 2, "no column is special"
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, y.detach())


def test_the_seed_decides_and_the_state_of_the_generator_goes_on() -> None:
    x, drop = torch.randn(5, 7), Dropout(0.4)
    torch.manual_seed(3)
    first = drop(x)
    state = torch.get_rng_state()
    second = drop(x)
    torch.set_rng_state(state)
    assert torch.equal(drop(x), second) and not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)


def test_evaluation_and_watched_calls_are_torchs_own() -> None:
    x = torch.randn(4, 6)
    assert Dropout(0.5).eval()(x) is x and torch.equal(Dropout(0.0)(x), x)
    y = torch.func.vmap(Dropout(0.5), randomness="different")(torch.ones(64, 6))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert Dropout(0.5)(torch.zeros(0, 3)).shape == (0, 3)
