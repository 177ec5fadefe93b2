"""The kernels of HyperMLP and HyperGLU against float64: the output and every gradient, as exact as plain torch.

On a CPU they run in Triton's interpreter,
started by `test_in_the_interpreter` of test_kernels.py; on a GPU: pytest -m gpu tests/test_hyper_mlp_kernel.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import lay_out, tokens
from tests.kernel_rule import DEVICES, Seen, each_device, hold, poisoned
from tokmix.ops import dispatch, flops
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mlp import op, reference, select
from tokmix.ops.hyper_mlp.reference import Bank

Tensors = dict[str, Tensor]
WAYS = {"hyper_mlp", "hyper_mlp_backward"}
PARTS = ("down", "up", "diagonal", "control")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time for each program, so that short sequences have to have several tiles, runs and stripes."""
    torch.manual_seed(0)
    if dispatch.INTERPRETED:
        from tokmix.ops.hyper_mlp import launch, launch_backward

        monkeypatch.setattr(launch, "SIDE", 16)
        monkeypatch.setattr(launch_backward, "RUN", 2)


def draw(
    device: str, B: int, H: int, T: int, e: int, f: int, r: int, glu: bool, banks: str = "12", size: float = 0.3, lags: int | None = None
) -> Tensors:
    """Fresh numbers; the banks' own are scaled by size, so that what they add is about as large as the scores."""
    normal = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float64)
    given = {
        "q": normal(B, H * (1 + glu), T, e),
        "k": normal(B, T, H * (1 + glu), e).transpose(1, 2),
        "v": normal(B, T, H, f).transpose(1, 2),
    }
    for name, heads in (("1", H * (1 + glu)), ("2", H)):
        if name in banks:
            given |= {"down" + name: size * normal(heads, lags or T, r), "up" + name: size * normal(heads, r, lags or T)}
            given |= {"diagonal" + name: size * normal(heads, lags or T), "control" + name: normal(B, heads, T, r).sigmoid()}
    return given


def mixed(body: Callable[..., Tensor], t: Tensors, lag: bool) -> Tensor:
    banks = [Bank(*(t[part + name] for part in PARTS)) if "down" + name in t else None for name in ("1", "2")]
    return body(t["q"], t["k"], t["v"], None, *banks, lag, t["down1"].shape[1] if "down1" in t else t["q"].shape[2])


def with_gradients(body: Callable[..., Tensor], given: Tensors, dy: Tensor, dtype: torch.dtype, lag: bool) -> Tensors:
    leaves = {name: x.to(dtype).detach().requires_grad_() for name, x in given.items()}
    y = mixed(body, leaves, lag)
    grads = torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype))
    return {"y": y.detach(), **{f"d {name}": grad for name, grad in zip(leaves, grads, strict=True)}}


def check(given: Tensors, dtype: torch.dtype, lag: bool = True) -> None:
    given = {name: x.to(dtype) for name, x in given.items()}  # every body starts from the same numbers
    dy = torch.randn_like(given["v"])
    exact = with_gradients(reference.hyper_mlp, given, dy, torch.float64, lag)
    plain = with_gradients(reference.hyper_mlp, given, dy, dtype, lag)
    with implementation("triton"), poisoned(), Seen() as seen:
        ours = with_gradients(select.hyper_mlp, given, dy, dtype, lag)
    assert seen.ours == WAYS
    assert all(ours[name].dtype == plain[name].dtype and ours[name].shape == exact[name].shape for name in exact)
    hold(ours, plain, exact, dtype)


SHAPES = {  # B, H, T, e, f, r
    "tiles": (1, 1, 37, 16, 16, 4),
    "odd": (2, 1, 19, 5, 7, 3),
    "one token": (3, 2, 1, 8, 8, 2),
    "one tile": (1, 1, 16, 16, 16, 16),
}


# ---------------------------------------------------------------- against float64
@each_device
@pytest.mark.parametrize(
    ("shape", "glu"), [("tiles", False), ("tiles", True), ("odd", True), ("one token", False), ("one token", True), ("one tile", False)]
)
def test_shapes(device: str, shape: str, glu: bool) -> None:
    check(draw(device, *SHAPES[shape], glu), torch.float32)


@each_device
@pytest.mark.parametrize(
    ("banks", "glu", "lag"), [("", False, True), ("1", True, True), ("1", False, False), ("2", False, True), ("2", True, False)]
)
def test_banks(device: str, banks: str, glu: bool, lag: bool) -> None:
    check(draw(device, 1, 1, 18, 8, 8, 4, glu, banks), torch.float32, lag)


@each_device
def test_by_position(device: str) -> None:
    check(draw(device, 1, 1, 35, 8, 8, 4, True), torch.float32, lag=False)


@each_device
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # a sigmoid's way to zero, in the interpreter
@pytest.mark.parametrize(("dtype", "glu"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_short_dtypes(device: str, dtype: torch.dtype, glu: bool) -> None:
    """Banks that outweigh the scores, too: their rounding must not turn signs."""
    check(draw(device, 1, 1, 33, 16, 16, 16, glu, size=1.0), dtype)


@each_device
def test_longer_banks(device: str) -> None:
    """Banks for more lags than there are tokens; the gradient of those beyond is zero."""
    check(draw(device, 1, 1, 20, 8, 8, 4, False, lags=30), torch.float32)


@each_device
def test_stripes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch memory for one tile of queries at a time, and for two where keys are few."""
    from tokmix.ops.hyper_mlp import launch, launch_backward

    T = 2 * launch.SIDE + 2
    given = draw(device, 2, 1, T, 8, 8, 4, False)
    for tiles in (1, 6):
        monkeypatch.setattr(launch_backward, "SCRATCH", tiles * 4 * 4 * launch.SIDE**2)
        check(given, torch.float32)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("glu", [False, True], ids=["mlp", "glu"])
@pytest.mark.parametrize(("e", "f", "r"), [(64, 256, 16), (32, 128, 16), (128, 512, 64), (24, 40, 5)], ids=str)
def test_full_size(device: str, e: int, f: int, r: int, glu: bool, dtype: torch.dtype) -> None:
    """Tiles as large as they are; on a GPU alone."""
    if dtype == torch.float32 and e > select.WIDEST_FLOAT32[0]:
        pytest.skip("in float32 such heads take plain torch: compiling would take minutes")
    check(draw(device, 2, 2, 333, e, f, r, glu, size=0.1), dtype)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("glu", [False, True], ids=["mlp", "glu"])
def test_several_runs(device: str, glu: bool) -> None:
    """More tiles of lags than a program of the backward pass takes; small ones are asked of the interpreter in every test."""
    from tokmix.ops.hyper_mlp import launch, launch_backward

    T = (2 * launch_backward.RUN + 1) * launch.SIDE + 11
    check(draw(device, 1, 2, T, 64, 256, 16, glu, size=0.1), torch.bfloat16)


# ---------------------------------------------------------------- layouts, determinism
@each_device
def test_strides(device: str) -> None:
    given = {name: x.float() for name, x in draw(device, 2, 1, 18, 8, 8, 4, False).items()}
    turned = {name: x.transpose(-1, -2).contiguous().transpose(-1, -2) for name, x in given.items()}
    results = []
    for start in (given, turned):
        leaves = {name: x.detach().requires_grad_() for name, x in start.items()}
        with implementation("triton"), poisoned():
            y = mixed(select.hyper_mlp, leaves, True)
            results.append((y, *torch.autograd.grad(y.sum(), list(leaves.values()))))  # an expanded gradient, too
    for straight, other in zip(*results, strict=True):
        assert torch.equal(straight, other)


@each_device
def test_joining_the_heads_moves_nothing(device: str) -> None:
    given = {name: x.float() for name, x in draw(device, 2, 3, 5, 8, 4, 2, False).items()}
    with implementation("triton"):
        y = mixed(select.hyper_mlp, given, True)
    assert y.transpose(1, 2).flatten(2).data_ptr() == y.data_ptr()


@each_device
def test_two_runs_give_the_same_bits(device: str) -> None:
    given = draw(device, 1, 1, 20, 8, 8, 4, True)
    dy = torch.randn_like(given["v"])
    with implementation("triton"):
        first, second = (with_gradients(select.hyper_mlp, given, dy, torch.float32, True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_device
def test_a_token_that_sees_nothing_but_zeros(device: str) -> None:
    given = {name: x.float() for name, x in draw(device, 1, 1, 18, 8, 8, 4, True).items()}
    given["q"][:, :, 3] = 0
    check(given, torch.float32)


# ---------------------------------------------------------------- the layers
@each_device
@pytest.mark.parametrize(
    ("name", "options"),
    [("hypermlp", {}), ("hyperglu", {}), ("hypermlp", {"lag": False, "r1": False}), ("hyperglu", {"r2": False, "rotary": True})],
    ids=str,
)
@pytest.mark.parametrize("lengths", [None, [[20, 5], [18]]], ids=["whole", "packed"])
def test_layers(device: str, name: str, options: dict, lengths: list | None) -> None:
    mixer = tokmix.create(name, 16, causal=True, max_len=32, heads=1, rank=4, **options).to(device)
    x, segments = tokens(2, 25, 16, dtype=torch.float32).to(device), None
    if lengths is not None:
        segments = tokmix.Segments.from_lengths(lengths, 25).to(device)
        x = lay_out([x.flatten(0, 1)[: int(segments.mask.sum())][None].cpu()], segments.ids.cpu()).to(device)
    found = []
    for body in ("triton", "reference"):
        leaf = x.clone().requires_grad_()
        with implementation(body), Seen() as seen:
            y = mixer(leaf, segments)
            grads = torch.autograd.grad(y.square().sum(), [leaf, *mixer.parameters()])
        taps = {"short_conv", "short_conv_backward"} if mixer.conv else set()
        assert seen.ours == (WAYS | taps if body == "triton" else set())
        found.append((y, *grads))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- compile, registration, counters, choice
@each_device
def test_compiles_whole(device: str) -> None:
    given = draw(device, 1, 1, 18, 8, 8, 4, False)
    dy = torch.randn_like(given["v"])
    body = lambda *given: select.hyper_mlp(*given)
    with implementation("triton"):
        compiled = torch.compile(body, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager = with_gradients(body, given, dy, torch.float32, True)
        found = with_gradients(compiled, given, dy, torch.float32, True)
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("banks", ["", "12"])
def test_registration(device: str, banks: str) -> None:
    """Schema, fake tensors and autograd agree with what the ops do."""
    t = {name: x.float().requires_grad_() for name, x in draw(device, 1, 1, 18, 4, 4, 2, True, banks).items()}
    given: tuple[Any, ...] = (t["q"], t["k"], t["v"], *(t.get(part + name) for name in "12" for part in PARTS), True)
    torch.library.opcheck(op.forward.op, given, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@each_device
def test_operation_counts(device: str) -> None:
    given = {name: x.float().requires_grad_() for name, x in draw(device, 2, 3, 10, 8, 4, 2, False).items()}
    with FlopCounterMode(display=False) as counter, implementation("triton"):
        y = mixed(select.hyper_mlp, given, True)
        forward = counter.get_total_flops()
        y.sum().backward()
    pairs = 2 * 2 * (10 * 11 // 2) * 3  # both factors, sequences, pairs, heads
    assert forward == pairs * (3 * 8 + 3 * 2 + 2 * 2 + 4)
    assert counter.get_total_flops() - forward == pairs * (3 * 8 + 2 * 4 + 5 * 2 + 5 * 2)
    assert flops.hyper_mlp(op.Inputs((2, 3, 10, 8), (2, 3, 10, 8), (2, 3, 10, 4), *[None] * 8, False)) == pairs * (2 * 8 + 4)


def test_what_has_no_kernel_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    if not dispatch.INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
    monkeypatch.setattr(select, "DEEPEST", 5)  # what a grid holds of sequences times heads
    wide, deep, many = draw("cpu", 1, 1, 5, 150, 4, 2, False), draw("cpu", 1, 1, 5, 4, 4, 70, False), draw("cpu", 3, 2, 5, 4, 4, 2, False)
    for given in (draw("cpu", 1, 1, 5, 4, 4, 2, False), *({name: x.float() for name, x in t.items()} for t in (wide, deep, many))):
        with Seen() as seen, implementation("triton"):
            found = mixed(select.hyper_mlp, given, True)
        assert not seen.ours
        assert torch.equal(found, mixed(reference.hyper_mlp, given, True))


def test_importing_the_choice_leaves_triton_alone() -> None:
    code = "import sys, tokmix.ops.hyper_mlp.select; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------------------- plain torch in pieces
@pytest.mark.parametrize("lag", [True, False], ids=["lag", "position"])
@pytest.mark.parametrize("glu", [False, True], ids=["mlp", "glu"])
def test_the_reference_in_pieces(lag: bool, glu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw("cpu", 2, 2, 23, 4, 4, 3, glu, lags=40)
    dy = torch.randn_like(given["v"])
    whole = with_gradients(reference.hyper_mlp, given, dy, torch.float64, lag)
    monkeypatch.setattr(reference, "CHUNK", 5)
    pieces = with_gradients(reference.hyper_mlp, given, dy, torch.float64, lag)
    for name in whole:
        torch.testing.assert_close(pieces[name], whole[name], rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(mixed(reference.hyper_mlp, given, lag), whole["y"], rtol=1e-10, atol=1e-12)
