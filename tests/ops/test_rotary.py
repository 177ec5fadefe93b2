"""Rotary codes: in few passes, and their kernel against float64. On a CPU the kernel runs in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.kernel_rule import Tensors, check, draw, each_device, each_dtype
from tokmix.core import positions
from tokmix.ops import dispatch
from tokmix.ops.dispatch import implementation
from tokmix.ops.rotary import op, select

SHAPES = {"plain": (2, 3, 17, 8), "odd": (1, 2, 5, 7), "one pair": (3, 1, 4, 2), "many heads": (1, 40, 3, 64)}  # B, H, L, E
each_shape = pytest.mark.parametrize("shape", SHAPES)


def given(device: str, shape: tuple[int, ...], rows: bool = True) -> Tensors:
    """As a projection leaves them: heads behind tokens in memory."""
    B, H, L, E = shape
    x = draw(device, x=(B, L, H, E))["x"].transpose(1, 2)
    return {"x": x if rows else x.contiguous()}


def turns(x: Tensor, by_row: bool = False) -> tuple[Tensor, Tensor]:
    at = torch.arange(x.shape[2], device=x.device)
    return positions.turns(at + torch.arange(x.shape[0], device=x.device)[:, None] if by_row else at, x.shape[3], x.dtype)


def body(t: Tensors) -> Tensor:
    return select.rotate(t["x"], turns(t["x"]))


def plain(t: Tensors) -> Tensor:
    return positions.rotate(t["x"], turns(t["x"]))


@each_shape
@pytest.mark.parametrize("by_row", [False, True])
def test_few_passes_give_the_same_numbers_and_gradients(shape: str, by_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if dispatch.forced() is not None:
        pytest.skip("TOKMIX_IMPL is set")
    x = given("cpu", SHAPES[shape])["x"].double().requires_grad_()
    kept = x.detach().clone()
    expected = positions.rotate(x, turns(x, by_row))
    monkeypatch.setattr(positions, "rotate", lambda *args: pytest.fail("plain torch ran"))
    found = select.rotate(x, turns(x, by_row))
    torch.testing.assert_close(found, expected)
    dy = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, x, dy, create_graph=y is found)[0] for y in (found, expected))
    torch.testing.assert_close(one, other)
    assert torch.equal(x, kept) and one.requires_grad is False
    torch.testing.assert_close(found.norm(), x.norm())


def test_watched_calls_take_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = positions.rotate
    monkeypatch.setattr(positions, "rotate", lambda *args: calls.append("plain") or real(*args))
    x = given("cpu", (3, 2, 5, 4))["x"].float()
    torch.func.vmap(lambda row: select.rotate(row[None], turns(row[None])))(x)
    with implementation("reference"):
        select.rotate(x, turns(x))
    assert calls == ["plain"] * 2


@each_device
@pytest.mark.parametrize("shape", ["odd", "many heads"])
@each_dtype
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "heads"])
def test_kernel(device: str, shape: str, dtype: torch.dtype, rows: bool) -> None:
    check(body, plain, given(device, SHAPES[shape], rows), dtype, "rotary")  # whose y and dx lie token by token


@each_device
def test_compiles_registers_and_counts(device: str) -> None:
    x = given(device, (2, 3, 9, 8))["x"].float().requires_grad_()
    with implementation("triton"):
        backend = "inductor" if device == "cuda" else "aot_eager"
        compiled = torch.compile(lambda x, cos, sin: select.rotate(x, (cos, sin)), fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x, *turns(x)), body({"x": x}))
        with FlopCounterMode(display=False) as counter:
            body({"x": x}).sum().backward()
        assert counter.get_total_flops() == 0
    torch.library.opcheck(op.forward.op, (x, *turns(x)), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
