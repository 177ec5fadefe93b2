"""The short convolution: what it is, in place, and its kernels against float64.

On a CPU the kernels run in Triton's interpreter, started by `test_in_the_interpreter` of test_kernels.py; on a GPU:
pytest -m gpu tests/test_short_conv.py
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests import needs
from tests.kernel_rule import DEVICES, Seen, Tensors, check, draw, each_device, each_dtype, poisoned
from tokmix.ops import dispatch
from tokmix.ops.dispatch import implementation
from tokmix.ops.short_conv import op, reference, select

SHAPES = {  # B, L, D, K
    "plain": (2, 37, 24, 4),
    "odd": (3, 19, 7, 3),
    "shorter than the filter": (2, 3, 5, 4),
    "one token": (3, 1, 8, 4),
    "one tap": (1, 9, 6, 1),
    "most taps": (1, 20, 5, select.MOST),
}
each_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def given(device: str, shape: tuple[int, int, int, int]) -> Tensors:
    B, L, D, K = shape
    return draw(device, x=(B, L, D), taps=(D, K))


def body(t: Tensors) -> Tensor:
    return select.short_conv(t["x"], t["taps"])


def plain(t: Tensors) -> Tensor:
    return reference.short_conv(t["x"], t["taps"])


# ---------------------------------------------------------------- what it is
@each_shape
def test_each_token_with_those_just_before_it(shape: str) -> None:
    t = given("cpu", SHAPES[shape])
    x, taps = t["x"], t["taps"]
    K = taps.shape[1]
    y = torch.zeros_like(x)
    for now in range(x.shape[1]):
        for back in range(min(K, now + 1)):
            y[:, now] += taps[:, K - 1 - back] * x[:, now - back]
    torch.testing.assert_close(plain(t), y)
    if K > 1:  # with what came before
        carried = torch.nn.functional.pad(x[:, :1], (0, 0, K - 2, 0))
        torch.testing.assert_close(reference.short_conv(x[:, 1:], taps, carried), y[:, 1:])


@each_shape
def test_in_place(shape: str) -> None:
    """The same to the last digits, differentiable twice, and nothing that it was given is changed."""
    t = {name: x.requires_grad_() for name, x in given("cpu", SHAPES[shape]).items()}
    before = {name: x.detach().clone() for name, x in t.items()}
    ours, theirs = select.in_place(t["x"], t["taps"]), plain(t)
    torch.testing.assert_close(ours, theirs)
    dy = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad(y, list(t.values()), dy) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)
    assert all(torch.equal(t[name], before[name]) for name in t)
    small = [torch.randn(1, 3, 2, dtype=torch.double, requires_grad=True), torch.randn(2, 3, dtype=torch.double, requires_grad=True)]
    assert torch.autograd.gradcheck(select.in_place, small) and torch.autograd.gradgradcheck(select.in_place, small)


def test_which_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if dispatch.forced() is not None:
        pytest.skip("TOKMIX_IMPL is set")
    calls: list[str] = []
    for module, name in ((select, "in_place"), (reference, "short_conv")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, name=name: calls.append(name) or real(*args))
    x, taps = torch.randn(2, 5, 4), torch.randn(4, 3)
    select.short_conv(x, taps)
    select.short_conv(x, taps, torch.randn(2, 2, 4))  # a state to go on from
    select.short_conv(x.double(), taps)  # another dtype
    torch.func.vmap(lambda row: select.short_conv(row[None], taps))(x)
    with implementation("reference"):
        select.short_conv(x, taps)
    assert calls == ["in_place", *["short_conv"] * 4]


# ---------------------------------------------------------------- kernels
@each_device
@each_shape
@each_dtype
def test_kernels(device: str, shape: str, dtype: torch.dtype) -> None:
    check(body, plain, given(device, SHAPES[shape]), dtype, "short_conv")


@pytest.mark.parametrize("device", DEVICES[1:])
@each_dtype
def test_full_size(device: str, dtype: torch.dtype) -> None:
    """Several turns and tiles of channels; on a GPU alone."""
    check(body, plain, given(device, (4, 3000, 1100, 4)), dtype, "short_conv")


@each_device
def test_strides_bits_and_the_future(device: str) -> None:
    t = {name: x.float() for name, x in given(device, (2, 19, 8, 4)).items()}
    turned = {name: x.mT.contiguous().mT for name, x in t.items()}
    results = []
    for start in (t, t, turned):
        leaves = {name: x.detach().requires_grad_() for name, x in start.items()}
        with implementation("triton"), poisoned():
            y = body(leaves)
            results.append((y, *torch.autograd.grad(y[:, :11].sum(), list(leaves.values()))))
    for first, *others in zip(*results, strict=True):
        assert all(torch.equal(first, other) for other in others)
    dx = results[0][1]
    assert (dx[:, :11] != 0).all() and (dx[:, 11:] == 0).all()


@each_device
def test_compiles_registers_and_counts(device: str) -> None:
    t = {name: x.float().requires_grad_() for name, x in given(device, (2, 9, 8, 4)).items()}
    with implementation("triton"):
        compiled = torch.compile(
            lambda x, taps: select.short_conv(x, taps), fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager"
        )
        torch.testing.assert_close(compiled(t["x"], t["taps"]), body(t))
        with FlopCounterMode(display=False) as counter:
            body(t).sum().backward()
        assert counter.get_total_flops() == 0
    torch.library.opcheck(op.forward.op, (t["x"], t["taps"]), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@each_device
def test_compiled_under_transforms(device: str) -> None:
    """Those that torch.compile meets on its way take plain torch, as without it: a kernel would have no tangent, or none of its own."""
    t = {name: x.float() for name, x in given(device, (3, 9, 8, 4)).items()}
    tangent = lambda x, taps: torch.func.jvp(lambda x: select.short_conv(x, taps), (x,), (x.cos(),))[1]
    per_row = lambda x, taps: torch.func.vmap(
        torch.func.grad(lambda taps, row: select.short_conv(row[None], taps).square().sum()), (None, 0)
    )(taps, x)

    def dual(x: Tensor, taps: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(select.short_conv(forward_ad.make_dual(x, x.cos()), taps)).tangent

    for body in (tangent, per_row, dual):
        torch.compiler.reset()
        with implementation("reference"):
            expected = body(**t)
        with implementation("triton"):
            torch.testing.assert_close(torch.compile(body, backend="aot_eager")(**t), expected)


@each_device
def test_rows_far_apart(device: str) -> None:
    """The first and the last tap are more numbers apart than 32 bits count; most of the memory between is never touched."""
    K, D = select.MOST, 8
    far = 2**31 // (K - 1) + 1
    whole = needs.memory((K - 1) * far + D, torch.bfloat16, device)
    x = whole.as_strided((1, K, D), (0, far, 1)).copy_(torch.randn(1, K, D))
    taps, found = torch.randn(D, K, device=device).bfloat16(), []
    for leaf in (x.detach(), x.contiguous()):
        weight = taps.clone().requires_grad_()
        with implementation("triton"):
            y = select.short_conv(leaf.requires_grad_(), weight)
            found.append((y, *torch.autograd.grad(y, (leaf, weight), leaf.detach())))  # what flows back lies as x does
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@each_device
@pytest.mark.parametrize("name", ["hypermlp", "attention"])
def test_inside_a_mixer(device: str, name: str) -> None:
    mixer = tokmix.create(name, 16, causal=True, max_len=32, conv=4).to(device)
    x, segments = torch.randn(2, 19, 16, device=device), tokmix.Segments.from_lengths([19, 12], 19, device=device)
    found = []
    for how in ("reference", "triton"):
        with implementation(how), Seen() as seen:
            leaf = x.detach().requires_grad_()
            y = mixer(leaf, segments)
            found.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *mixer.parameters()])))
        assert ({"short_conv", "short_conv_backward"} <= seen.ours) == (how == "triton")
    for plainly, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plainly, rtol=1e-3, atol=1e-4)


def test_what_has_no_kernel_takes_the_reference() -> None:
    if not dispatch.INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
    x, taps = torch.randn(1, 20, 4), torch.randn(4, select.MOST + 1)
    for args in ((x, taps), (x.double(), taps[:, :3].double()), (x, taps[:, :3], torch.randn(1, 2, 4)), (x.bfloat16(), taps[:, :3])):
        with Seen() as seen, implementation("triton"):
            found = select.short_conv(*args)
        assert not seen.ours and torch.equal(found, reference.short_conv(*args))
