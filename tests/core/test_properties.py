"""What the papers say of their own mixers."""

from __future__ import annotations

import pytest
import torch

import tokmix
from tests.cases import tokens
from tokmix.layers.hsm import rungs, shift_of


@pytest.mark.parametrize("options", [{}, {"tied": False, "heads": 4}, {"norm": "length"}, {"norm": "none"}], ids=str)
def test_permuting_tokens_permutes_hypermixings_outputs(options: dict) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=False, max_len=64, **options).double()
    x, order = tokens(1, 30, 16), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mixer(x[:, order]), mixer(x)[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_positions_reach_the_hypernetworks_alone(position: str) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=False, max_len=64, position=position, norm="none", bias=False).double()
    x = tokens(1, 30, 16)
    order = torch.arange(29, -1, -1)
    assert not torch.allclose(mixer(x[:, order]), mixer(x)[:, order])
    assert (mixer(torch.zeros_like(x)) == 0).all(), "zero values give zero, whatever the positions"


@pytest.mark.parametrize("causal", [False, True])
def test_hypermixing_takes_any_length(causal: bool) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=causal, max_len=64, heads=4)
    with torch.no_grad():
        y = mixer(torch.randn(1, 20_000, 16))
    assert y.shape == (1, 20_000, 16) and y.isfinite().all()


@pytest.mark.parametrize("norm", ["layer", "length"])
@pytest.mark.parametrize(("dim", "options"), [(256, {}), (256, {"tied": False}), (128, {"heads": 8}), (64, {"hidden": 512})], ids=str)
def test_with_a_norm_the_scale_stays_near_one(norm: str, dim: int, options: dict) -> None:
    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", dim, causal=False, max_len=4096, norm=norm, **options)
    with torch.no_grad():
        scales = [float(mixer(torch.randn(4, n, dim)).std()) for n in (16, 64, 256, 1024, 4096)]
    assert all(0.5 < scale < 2 for scale in scales), scales


def test_without_a_norm_it_grows() -> None:
    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", 64, causal=False, max_len=4096, norm="none")
    with torch.no_grad():
        short, long = (float(mixer(torch.randn(4, n, 64)).std()) for n in (16, 4096))
    assert long > 10 * short


def test_tied_weights_are_shared_in_cross_mixing_too() -> None:
    mixer = tokmix.create("hypermixing", 16, causal=False, max_len=64, tied=True).double()
    x = tokens(1, 9, 16)
    torch.testing.assert_close(mixer(x, keys=x.clone(), values=x.clone()), mixer(x), rtol=0, atol=1e-12)


def test_schedules() -> None:
    places = range(8)
    assert rungs(1) == 1 and rungs(2) == 1 and rungs(16) == 4 and rungs(17) == 5
    assert [shift_of("ascending", p, 16) for p in places] == [1, 2, 4, 8, 1, 2, 4, 8]
    assert [shift_of("descending", p, 16) for p in places] == [8, 4, 2, 1, 8, 4, 2, 1]
    assert [shift_of("cyclic", p, 16) for p in places] == [1, 2, 4, 8, 4, 2, 1, 2]
    assert [shift_of((3, 5), p, 16) for p in places] == [3, 5] * 4
    assert [shift_of("cyclic", p, 1) for p in range(3)] == [1, 1, 1]


def test_a_stack_of_shifts_gives_every_pair_exactly_one_path() -> None:
    """With shifts 1, 2, 4, ... and y = x + z, token t receives each of the 2^L tokens up to itself once."""
    layers = [tokmix.create("hsm", 1, causal=True, max_len=16, layer=place, variant="ab").double() for place in range(4)]
    x = torch.eye(16, dtype=torch.float64)[:, :, None]  # batch of impulses
    with torch.no_grad():
        for layer in layers:
            for weight in layer.weights:
                weight.fill_(1)
            x = layer(x)
    assert torch.equal(x[:, :, 0], torch.ones(16, 16, dtype=torch.float64).triu())


def test_shifts_of_heads_climb_from_their_layers_place() -> None:
    assert tokmix.create("hsm", 12, causal=True, max_len=16, layer=2, heads=3).shifts == (4, 8, 1)


@pytest.mark.parametrize("name", ["hypermlp", "hyperglu"])
def test_a_model_built_for_a_longer_context_gives_the_same_numbers(name: str) -> None:
    """Banks are indexed by lag, so cutting them to a shorter context changes nothing."""
    long = tokmix.create(name, 16, causal=True, max_len=64).double()
    short = tokmix.create(name, 16, causal=True, max_len=20).double()
    state = {
        key: value[:, :20] if key.endswith((".down", ".diagonal")) else value[:, :, :20] if key.endswith(".up") else value
        for key, value in long.state_dict().items()
    }
    short.load_state_dict(state)
    x = tokens(2, 20, 16)
    torch.testing.assert_close(short(x), long(x), rtol=0, atol=1e-12)
    for n in (1, 7, 19):
        torch.testing.assert_close(long(x[:, :n]), long(x)[:, :n], rtol=0, atol=1e-12)


def test_the_scores_width_is_split_between_gate_and_scale() -> None:
    mlp, glu = (tokmix.create(name, 64, causal=True, max_len=32) for name in ("hypermlp", "hyperglu"))
    assert mlp.q.weight.shape == glu.q.weight.shape == (16, 64)


@pytest.mark.parametrize(
    ("name", "d", "L", "ratio"),
    [("hypermlp", 768, 1024, 1.02), ("hyperglu", 768, 1024, 1.06), ("hypermlp", 128, 128, 1.34), ("hyperglu", 128, 128, 1.53)],
)
def test_hypermlps_parameters_against_attentions(name: str, d: int, L: int, ratio: float) -> None:
    with torch.device("meta"):
        mixer = tokmix.create(name, d, causal=True, max_len=L)
    assert sum(p.numel() for p in mixer.parameters()) / (4 * d * d) == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(
    ("variant", "count"),
    [("ab", 2), ("vector", 2 * 32), ("matrix", 2 * 32**2), ("gate", 32**2 + 32), ("gate2", 2 * 32**2 + 32), ("fusion", 3 * 32 * 24)],
)
def test_hsm_parameters(variant: str, count: int) -> None:
    options = {"hidden": 24} if variant == "fusion" else {}
    mixer = tokmix.create("hsm", 32, causal=True, max_len=16, variant=variant, **options)
    assert sum(p.numel() for p in mixer.parameters()) == count
