"""Compiled by Inductor for a CPU, for real: no other test runs the code that torch.compile writes."""

from __future__ import annotations

import pytest
import torch

import tokmix
from tests.cases import tokens
from tokmix import Segments
from tokmix.core.mixer import mixer_class

CASES = [
    (name, causal)
    for name in tokmix.mixers()
    for causal in (False, True)
    if ("causal" if causal else "bidirectional") in mixer_class(name).modes
]


def compiled_error(name: str, causal: bool, length: int, segments: Segments | None) -> float:
    """The largest difference of output and gradient, relative to the largest number."""
    torch.manual_seed(0)
    mixer = tokmix.create(name, 12, causal=causal, max_len=32)
    torch._dynamo.reset()
    dy, found = tokens(2, length, 12, seed=1).float(), []
    for run in (mixer, torch.compile(mixer, backend="inductor")):
        x = tokens(2, length, 12).float().requires_grad_()
        y = run(x, segments)
        found.append((y, *torch.autograd.grad((y * dy).sum(), x)))
    return max(float((a - b).detach().abs().max() / a.detach().abs().max()) for a, b in zip(*found, strict=True))


def test_unpadded_fnet() -> None:
    """torch 2.13 miscompiles (j * k + n // 2) % n: the relative error was 1.4."""
    assert compiled_error("fnet", False, 17, None) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_every_mixer(name: str, causal: bool) -> None:
    assert compiled_error(name, causal, 17, None) < 1e-4
    assert compiled_error(name, causal, 17, Segments.from_lengths([17, 11])) < 1e-4
