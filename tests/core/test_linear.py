"""Products by oneDNN are those of torch, with their gradients, and make way for whatever watches torch's own products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from tokmix.core import linear

needs_one_dnn = pytest.mark.skipif(not linear._has_one_dnn(), reason="this torch has no products by oneDNN")


@pytest.fixture(autouse=True)
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN computes on any CPU; only its speed depends on who made it."""
    monkeypatch.setattr(linear, "_is_amd", lambda: True)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@needs_one_dnn
@pytest.mark.parametrize("shape", [(40, 64), (3, 5, 64), (2, 2, 5, 64)])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients(shape: tuple[int, ...], biased: bool) -> None:
    x, weight = draw(*shape).requires_grad_(), draw(32, 64).requires_grad_()
    bias = draw(32).requires_grad_() if biased else None
    assert linear._pays(x, weight)
    inputs = [one for one in (x, weight, bias) if one is not None]
    found, wanted = linear.linear(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(linear.linear(x, weight, bias), wanted)


@needs_one_dnn
def test_gradients_of_gradients() -> None:
    seconds = []
    for product in (linear.linear, F.linear):
        x, weight = draw(16, 24).requires_grad_(), draw(8, 24).requires_grad_()
        (first,) = torch.autograd.grad(product(x, weight).pow(3).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), [x, weight]))
    for a, b in zip(*seconds, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


@needs_one_dnn
@pytest.mark.parametrize(
    "x",
    [draw(64, 40).t(), draw(4, 9, 128)[..., ::2], draw(4, 9, 64).transpose(0, 1), draw(16, 1, 64).expand(16, 5, 64)],
    ids=["transposed", "every second", "rows first", "expanded"],
)
def test_strides(x: torch.Tensor) -> None:
    weight = draw(1, 192, 32)[:, 64:128][0].t()
    torch.testing.assert_close(linear.linear(x, weight), F.linear(x, weight))


def test_watched_products_are_torchs_own() -> None:
    x, weight = draw(40, 64), draw(32, 64)
    with FlopCounterMode(display=False) as counter:
        assert not linear._pays(x, weight)
        linear.linear(x, weight)
    assert counter.get_total_flops() == 2 * 40 * 64 * 32
    mapped = torch.func.vmap(lambda one: linear.linear(one, weight))(x.view(4, 10, 64))
    torch.testing.assert_close(mapped.flatten(0, 1), F.linear(x, weight))
    _, tangent = torch.func.jvp(lambda one: linear.linear(one, weight), (x,), (x,))
    torch.testing.assert_close(tangent, F.linear(x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear.linear(x, weight).dtype == torch.bfloat16
    program = torch.export.export(linear.Linear(64, 32), (x,))
    assert "mkldnn" not in str(program.graph)
    assert not linear._pays(x.double(), weight.double()) and not linear._pays(x[:4], weight), "other dtypes and few rows"
    assert not linear._pays(x.to("meta"), weight.to("meta"))
