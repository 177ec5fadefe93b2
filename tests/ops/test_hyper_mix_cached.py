"""Short sequences on a CPU, a few at a time: the reference's numbers, chosen where it pays and nobody looks into the op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tokmix.core.segments import Segments
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mix import cached, reference


def given(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=dtype, requires_grad=True)
    return draw(5, 2, 7, 6), draw(5, 2, 4, 6), draw(5, 2, 7, 3), draw(5, 1, 1, 1)


@pytest.fixture
def tiny_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences at a time, so that the last is alone."""
    monkeypatch.setattr(cached, "WORTH", 0)
    monkeypatch.setattr(cached, "CACHE", 2 * 2 * 6 * 3 * 8 // torch.get_num_threads() + 1)


@pytest.mark.parametrize("scaled", [False, True])
def test_it_gives_the_references_numbers(tiny_caches: None, scaled: bool) -> None:
    *tensors, scale = given()
    leaves = (*tensors, scale) if scaled else tuple(tensors)
    found, wanted = (body.mix(*tensors, scale if scaled else None) for body in (cached, reference))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    dy = torch.randn_like(found)
    for ours, theirs in zip(torch.autograd.grad(found, leaves, dy), torch.autograd.grad(wanted, leaves, dy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients(tiny_caches: None) -> None:
    *tensors, _ = given()
    assert torch.autograd.gradgradcheck(lambda *of: cached.mix(*of, None), tensors)


def test_it_is_taken_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=False, max_len=32)
    x, segments = torch.randn(4, 10, 16), Segments.from_lengths([10, 3, 0, 7], 10)
    calls = []
    monkeypatch.setattr(cached, "WORTH", 4 * 4 * 16 * 32)  # of four states of 16 by 32 numbers
    whole = cached.mix
    monkeypatch.setattr(cached, "mix", lambda *args: calls.append(args) or whole(*args))
    with implementation("reference"):
        wanted = mixer(x, segments)
    with FlopCounterMode(display=False):
        mixer(x, segments)
    assert not calls, "asked for the reference, or counted"
    torch.testing.assert_close(mixer(x, segments), wanted)
    assert len(calls) == 1
    mixer(x[:3], Segments.from_lengths([10, 3, 1], 10))
    monkeypatch.setattr(cached, "LONGEST", 9)
    mixer(x, segments)
    assert len(calls) == 1, "too few, or too long"
