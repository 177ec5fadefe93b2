"""Pseudo-attention against one backward pass per number, true attention against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tokmix import Segments, create, mixers
from tokmix.core.mixer import mixer_class
from tokmix.study.explain import jacobian as explain

T, D = 7, 8


def brute_force(mix, x: Tensor, segments: Segments | None = None) -> Tensor:
    """The definition, one output number at a time."""
    B = x.shape[0]
    squares = torch.zeros(B, T, T, dtype=x.dtype)
    for b in range(B):
        for i in range(T):
            for channel in range(D):
                leaf = x.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(mix(leaf, segments)[b, i, channel], leaf)
                squares[b, i] += gradient[b].square().sum(-1)
    return squares.sqrt()


def made(name: str, causal: bool = False, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return create(name, D, causal=causal, max_len=16, **options).double()


def cases() -> list[tuple[str, bool]]:
    modes = ((False, "bidirectional"), (True, "causal"))
    return [(name, causal) for name in mixers() for causal, mode in modes if mode in mixer_class(name).modes]


@pytest.mark.parametrize(("name", "causal"), cases())
def test_pseudo_attention_is_the_norm_of_the_jacobian(name, causal):
    mixer = made(name, causal)
    x = torch.randn(2, T, D, dtype=torch.float64)
    found = explain.pseudo_attention(mixer, x, rows=13)  # 13: rows of one pass belong to several tokens and sequences
    torch.testing.assert_close(found, brute_force(mixer, x))
    if causal:
        assert found.triu(1).abs().max() == 0
    assert all(parameter.grad is None for parameter in mixer.parameters())


@pytest.mark.parametrize(
    "segments", [Segments.from_mask(torch.arange(T) >= torch.tensor([[2], [0]])), Segments.from_lengths([[3, 4], [5]])]
)
@pytest.mark.parametrize("name", ["hypermixing", "attention"])
def test_padded_and_packed_rows(name, segments):
    mixer = made(name)
    x = torch.randn(2, T, D, dtype=torch.float64)
    found = explain.pseudo_attention(mixer, x, segments, rows=50)
    torch.testing.assert_close(found, brute_force(mixer, x, segments))
    assert found[~segments.mask].abs().max() == 0
    assert found.mT[~segments.mask].abs().max() == 0
    if segments.packed:
        assert found[0, :3, 3:].abs().max() == found[0, 3:, :3].abs().max() == 0


def test_estimates_come_near_and_nearer():
    mixer = made("hypermixing")
    x = torch.randn(1, T, D, dtype=torch.float64)
    exact = explain.pseudo_attention(mixer, x)

    def off(samples: int) -> float:
        guess = explain.pseudo_attention(mixer, x, samples=samples, generator=torch.Generator().manual_seed(0))
        return float((guess.square() - exact.square()).norm() / exact.square().norm())

    assert off(4000) < 0.05 < off(4)


def test_any_function_and_any_width_and_no_grad_around():
    weight = torch.randn(D, 3, dtype=torch.float64)
    x = torch.randn(1, T, D, dtype=torch.float64)
    with torch.no_grad():
        found = explain.pseudo_attention(lambda x, segments: x.flip(1) @ weight, x)
    torch.testing.assert_close(found[0], torch.eye(T, dtype=torch.float64).flip(0) * weight.norm())


@pytest.mark.parametrize(
    "options", [{}, {"heads": 2, "scale": 1.0, "bias": False}, {"rotary": True, "window": 3}, {"causal": True, "conv": 3}]
)
def test_attention_weights_give_the_mixers_own_output(options):
    mixer = made("attention", **options)
    x = torch.randn(2, T, D, dtype=torch.float64)
    weights = explain.attention(mixer, x)
    assert weights.shape == (2, mixer.heads, T, T)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, mixer.heads, T, dtype=torch.float64))
    values = mixer.v(mixer.conv_v(x, None) if mixer.conv else x).unflatten(-1, (mixer.heads, -1)).transpose(1, 2)
    torch.testing.assert_close(mixer.out((weights @ values).transpose(1, 2).flatten(2)), mixer(x))


def test_attention_weights_of_padded_rows_are_those_of_the_sequences_alone():
    mixer = made("attention")
    x = torch.randn(2, T, D, dtype=torch.float64)
    segments = Segments.from_mask(torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]]))
    weights = explain.attention(mixer, x, segments)
    assert weights.shape == (2, 4, T, T)
    torch.testing.assert_close(weights[0, :, 2:, 2:], explain.attention(mixer, x[:1, 2:])[0])
    torch.testing.assert_close(weights[1, :, :3, :3], explain.attention(mixer, x[1:, :3])[0])
    assert weights[0, :, :2].abs().max() == weights[0, :, :, :2].abs().max() == weights[1, :, 3:].abs().max() == 0


def test_wrong_requests_say_what_is_wrong():
    x = torch.randn(1, T, D, dtype=torch.float64)
    with pytest.raises(ValueError, match="'hypermixing' has no attention weights"):
        explain.attention(made("hypermixing"), x)
    with pytest.raises(ValueError, match="packed"):
        explain.attention(made("attention"), x, Segments.from_lengths([[3, 4]]))
    with pytest.raises(ValueError, match=r"\[B, T, D\]"):
        explain.pseudo_attention(made("attention"), x[0])
    with pytest.raises(ValueError, match="samples=0"):
        explain.pseudo_attention(made("attention"), x, samples=0)
