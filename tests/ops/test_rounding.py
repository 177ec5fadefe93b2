"""What kernels round to: the nearest number of a dtype, on a GPU and in Triton's interpreter, which by itself cuts bits off.

In the interpreter by `test_in_the_interpreter` of test_kernels.py; on a GPU: pytest -m gpu tests/test_rounding.py
"""

from __future__ import annotations

import pytest
import torch

from tests.kernel_rule import DTYPES, each_device, few_programs  # noqa: F401  (a fixture for every test)

triton = pytest.importorskip("triton")
tl = triton.language
rounding = pytest.importorskip("tokmix.ops.kernels.rounding")
operand, store_rounded = rounding.operand, rounding.store_rounded


@triton.jit
def stored(X, Y, count, N: tl.constexpr):
    at = tl.arange(0, N)
    store_rounded(Y + at, tl.load(X + at), at < count)


@triton.jit
def multiplied(X, Y, N: tl.constexpr, KIND: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = operand(tl.load(X + at), KIND)
    one = operand((tl.arange(0, N)[:, None] == tl.arange(0, N)[None, :]).to(tl.float32), KIND)
    tl.store(Y + at, tl.dot(x, one))


@each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stores_take_the_nearest_number_and_leave_the_rest_alone(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(256, device=device) * 10.0 ** torch.linspace(-4, 4, 256, device=device)
    x[:4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, torch.nan, torch.inf])  # two of them half-way between bfloat16's numbers
    y = torch.full_like(x, 7.0, dtype=dtype)
    stored[(1,)](x, y, 200, 256)
    torch.testing.assert_close(y[:200], x[:200].to(dtype), rtol=0, atol=0, equal_nan=True)
    assert (y[200:] == 7).all()


@each_device
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_factors_are_the_nearest_numbers(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(32, 32, device=device)
    y = torch.empty_like(x)
    multiplied[(1,)](x, y, 32, {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype])
    torch.testing.assert_close(y, x.to(dtype).float(), rtol=0, atol=0)
