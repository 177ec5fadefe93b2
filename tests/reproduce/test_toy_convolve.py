"""The convolution of the shapes task: its kernels against float64, forward and every gradient.

On a CPU they run in Triton's interpreter, in a process of its own. On a GPU: pytest -m gpu tests/reproduce/test_toy_convolve.py
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from bench.speed.rule import check
from reproduce.toy.convolve import _countable, convolve
from tests.kernel_rule import each_device
from tokmix.ops import dispatch


@pytest.mark.skipif(not dispatch.HAS_TRITON, reason="triton is not installed")
@pytest.mark.skipif(dispatch.INTERPRETED, reason="already in the interpreter")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "not gpu", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]


def by_torch(given: dict[str, torch.Tensor], relu: bool) -> torch.Tensor:
    y = F.conv1d(given["x"].mT, given["weight"].permute(2, 1, 0), given["bias"], padding=given["weight"].shape[0] // 2).mT
    return y.relu() if relu else y


def draw(device: str, B: int, T: int, C: int, D: int, K: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {"x": torch.randn(B, T, C), "weight": torch.randn(K, C, D) * (K * C) ** -0.5, "bias": torch.randn(D)}
    return {name: tensor.to(device) for name, tensor in made.items()}


# B, T, C, D, K: the sizes of the task, odd ones, sequences shorter than the taps, more tokens than a tile and a share hold
@each_device
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("sizes", [(3, 100, 64, 64, 5), (2, 100, 1, 64, 5), (2, 100, 64, 1, 5), (4, 3, 20, 5, 7), (7, 41, 3, 16, 1)])
def test_kernels_are_as_exact_as_torch(device: str, relu: bool, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with dispatch.implementation("triton"):
        found = check(lambda given: convolve(**given, relu=relu), lambda given: by_torch(given, relu), draw(device, *sizes), torch.float32)
    over = [str(verdict) for verdict in found if not verdict.holds]
    assert not over, over


@pytest.mark.parametrize("relu", [True, False])
def test_without_kernels_it_is_torchs(relu: bool) -> None:
    given = draw("cpu", 2, 30, 8, 4, 5)
    with dispatch.implementation("reference"):
        torch.testing.assert_close(convolve(**given, relu=relu), by_torch(given, relu), rtol=1e-5, atol=1e-5)


def test_more_than_32_bits_count_takes_plain_torch() -> None:
    tokens, weight = (torch.empty(2**15, length, 64, device="meta") for length in (2**10 - 1, 2**10)), torch.empty(5, 64, 64, device="meta")
    few, many = (_countable(x, weight) for x in tokens)
    assert not many and not few  # the shares of the weights' gradient are more than the tokens
    assert _countable(torch.empty(2**14, 2**10, 64, device="meta"), weight)
