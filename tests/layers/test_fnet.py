"""FNet's two ways, matrix products for short rows and fast transforms for long ones: the same numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import tokens
from tokmix import Segments
from tokmix.layers import fnet

LENGTHS = [17, 16, 9, 2, 1, 0]
WAYS = (fnet.fourier_by_products, fnet.fourier_fast)


def mixer(dim: int = 12) -> tokmix.Mixer:
    return tokmix.create("fnet", dim, causal=False, max_len=8)


def with_gradient(way: object, x: Tensor, lengths: Tensor | None, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Of what stands before each row's end."""
    given = x.clone().requires_grad_()
    inside = torch.ones(x.shape[:2]) if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
    y = torch.where(inside[..., None].bool(), way(given, lengths), 0)  # type: ignore[operator]
    (dx,) = torch.autograd.grad((y * dy).sum(), given)
    return y.detach(), torch.where(inside[..., None].bool(), dx, 0)


def error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


@pytest.mark.parametrize("dim", [1, 2, 3, 15, 16])
@pytest.mark.parametrize("padded", [True, False])
def test_both_ways_agree(dim: int, padded: bool) -> None:
    lengths = torch.tensor(LENGTHS) if padded else None
    x, dy = tokens(6, 17, dim), tokens(6, 17, dim, seed=1)
    if lengths is not None:
        x = torch.where((torch.arange(17) < lengths[:, None])[..., None], x, 0)
    ours, theirs = (with_gradient(way, x, lengths, dy) for way in WAYS)
    for a, b in zip(ours, theirs, strict=True):
        assert error(a, b) < 1e-14
    small = (with_gradient(way, x.float(), lengths, dy.float()) for way in WAYS)
    for found in small:
        for a, b in zip(found, theirs, strict=True):
            assert a.dtype == torch.float32 and error(a, b) < 1e-6


def test_products_keep_their_precision_up_to_the_limit() -> None:
    """A cosine of 3,000 radians is off by 1e-4 in float32: jk has to be reduced first."""
    x = tokens(2, fnet.SHORT, fnet.NARROW)
    exact = torch.fft.fft2(x.to(torch.complex128)).real
    assert error(fnet.fourier_by_products(x, None), exact) < 1e-13
    assert error(fnet.fourier_by_products(x.float(), None), exact) < 1e-6


def test_a_short_row_in_a_long_batch_is_the_row_alone() -> None:
    """The batch goes by fast transforms, the row alone by products."""
    lengths = [fnet.SHORT + 3, fnet.SHORT, 7, 1, 0]
    x = tokens(5, lengths[0], 12)
    y = mixer()(x, Segments.from_lengths(lengths))
    for row, length in enumerate(lengths):
        alone = mixer()(x[row : row + 1, :length])[0]
        torch.testing.assert_close(y[row, :length], alone, rtol=0, atol=1e-11)
        assert not y[row, length:].any()


def test_lengths_and_width_choose_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for way in WAYS:
        monkeypatch.setattr(fnet, way.__name__, lambda x, lengths, name=way.__name__: taken.append(name) or x)
    for length, dim in ((fnet.SHORT, 3), (fnet.SHORT + 1, 3), (1, fnet.NARROW), (1, fnet.NARROW + 1)):
        mixer(dim)(torch.zeros(1, length, dim), Segments.from_lengths([length]))
        mixer(dim)(torch.zeros(1, length, dim))  # whole rows on a CPU
    assert taken == ["fourier_by_products", "fourier_fast", "fourier_fast", "fourier_fast"] * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
@pytest.mark.parametrize("length", [9, fnet.SHORT + 3])
def test_compiled_it_gives_the_same_numbers_and_gradients(length: int) -> None:
    for segments in (None, Segments.from_lengths([length, length - 4])):
        x, dy = tokens(2, length, 12), tokens(2, length, 12, seed=1)
        found = []
        for layer in (mixer(), torch.compile(mixer())):
            given = x.clone().requires_grad_()
            y = layer(given, segments)
            found.append((y, *torch.autograd.grad((y * dy).sum(), given)))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)


def test_gradients_of_gradients() -> None:
    x = tokens(2, 5, 4).requires_grad_()
    for lengths in (None, torch.tensor([5, 3])):
        assert torch.autograd.gradgradcheck(lambda x, n=lengths: _inside(fnet.fourier_fast(_inside(x, n), n), n).square(), (x,))


def _inside(x: Tensor, lengths: Tensor | None) -> Tensor:
    return x if lengths is None else torch.where((torch.arange(x.shape[1]) < lengths[:, None])[..., None], x, 0)


def test_autocast_leaves_the_products_alone() -> None:
    x = tokens(2, 9, 12, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer()(x)
    assert torch.equal(y, mixer()(x))


@pytest.mark.parametrize("longest", [fnet.SHORT, 4 * fnet.SHORT])
def test_exports_with_any_length(longest: int) -> None:
    exported = torch.export.export(mixer(), (tokens(2, 9, 12),), dynamic_shapes={"x": {1: torch.export.Dim("T", min=2, max=longest)}})
    for length in (5, longest):
        x = tokens(2, length, 12)
        torch.testing.assert_close(exported.module()(x), mixer()(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("length", "dim"), [(fnet.SHORT, 12), (fnet.SHORT + 1, 12), (5, 7), (5, fnet.NARROW + 1)])
def test_cost_counts_the_products_of_short_rows(length: int, dim: int) -> None:
    """A padded row has the same ones; none has a gradient for its constant."""
    x = torch.empty(1, length, dim, device="meta", requires_grad=True)
    cost = mixer(dim).cost(length)
    for segments in (None, Segments.from_lengths([length]).to("meta")):
        with FlopCounterMode(display=False) as counter:
            y = mixer(dim)(x, segments)
        assert counter.get_total_flops() == cost.matmul
        with FlopCounterMode(display=False) as counter:
            y.sum().backward()
        assert counter.get_total_flops() == cost.training - cost.matmul == cost.matmul
    assert bool(cost.matmul) == (length <= fnet.SHORT and dim <= fnet.NARROW) and cost.pointwise > 0
