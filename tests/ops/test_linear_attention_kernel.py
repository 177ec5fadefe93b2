"""The kernel of linear attention against float64. On a CPU it runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix.ops.flops  # noqa: F401 - what the op costs
from tests.kernel_rule import Seen, Tensors, draw, each_device, each_dtype, hold
from tokmix.ops.dispatch import implementation
from tokmix.ops.linear_attention import op, read

SHAPES = {"plain": (2, 3, 17, 8), "one token": (1, 2, 1, 16), "several tiles": (2, 1, 150, 32), "odd width": (1, 2, 70, 5)}  # B, H, L, e
each_shape = pytest.mark.parametrize("shape", SHAPES)


def given(device: str, shape: tuple[int, ...]) -> Tensors:
    """As projections leave them: heads behind tokens in memory; the values in one piece."""
    B, H, L, e = shape
    drawn = draw(device, q=(B, L, H, e), k=(B, L, H, e))
    return {name: x.transpose(1, 2) for name, x in drawn.items()} | draw(device, v=shape)


def some(shape: tuple[int, ...], device: str) -> Tensor:
    """The first row whole, of the others a part, with a hole."""
    real = torch.arange(shape[2], device=device) < torch.tensor([[shape[2]], [shape[2] // 2 + 1]], device=device)[: shape[0]]
    real[-1, shape[2] // 4] = shape[2] == 1
    return real


@each_device
@each_shape
@each_dtype
@pytest.mark.parametrize("masked", [False, True])
def test_kernel(device: str, shape: str, dtype: torch.dtype, masked: bool) -> None:
    t = {name: x.to(dtype) for name, x in given(device, SHAPES[shape]).items()}
    real = some(SHAPES[shape], device) if masked else None
    wide = {name: x.double() for name, x in t.items()}
    with implementation("reference"):
        exact, plain = read(**wide, real=real), read(**t, real=real)
    if real is not None:  # what stands in padding does not matter
        t |= {name: torch.where(real[:, None, :, None], t[name], torch.nan) for name in ("k", "v")}
    with implementation("triton"), Seen() as seen:
        found = read(**t, real=real)
    assert seen.ours == {"linear_attention"} and found.dtype == dtype and found.shape == exact.shape
    hold({"y": found}, {"y": plain}, {"y": exact}, dtype)


@each_device
def test_long_rows_in_float16_and_padding_alone(device: str) -> None:
    t = {name: (3 + x).half() for name, x in given(device, (1, 1, 1500, 16)).items()}
    nothing = torch.zeros(1, 1500, dtype=torch.bool, device=device)
    with implementation("triton"):
        assert torch.isfinite(read(**t)).all()
        assert (read(**t, real=nothing) == 0).all()


@each_device
def test_gradients_take_plain_torch_and_the_op_compiles_and_counts(device: str) -> None:
    t = {name: x.float() for name, x in given(device, (2, 3, 9, 8)).items()}
    with implementation("triton"):
        with Seen() as seen:
            read(**{name: x.clone().requires_grad_() for name, x in t.items()}).sum().backward()
        assert seen.ours == set()
        backend = "inductor" if device == "cuda" else "aot_eager"
        torch.testing.assert_close(torch.compile(read, fullgraph=True, backend=backend)(**t), read(**t))
        with FlopCounterMode(display=False) as counter:
            read(**t)
        assert counter.get_total_flops() == 4 * 2 * 3 * 9 * 8 * 8
    torch.library.opcheck(op.forward.op, (*t.values(), None), test_utils=("test_schema", "test_faketensor"))
