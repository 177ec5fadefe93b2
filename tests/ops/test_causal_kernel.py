"""The kernels of causal HyperMixing against float64: every output and every gradient, as exact as plain torch.

On a CPU they run in Triton's interpreter,
started by `test_in_the_interpreter` of test_kernels.py; on a GPU: pytest -m gpu tests/test_causal_kernel.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.kernel_rule import DEVICES, Seen, by_name, check_causal, each_device, hold, poisoned
from tokmix.ops import causal_hyper_mix as package
from tokmix.ops import dispatch, flops
from tokmix.ops.causal_hyper_mix import op, reference, select
from tokmix.ops.causal_hyper_mix.reference import Carry
from tokmix.ops.dispatch import implementation

Tensors = dict[str, Tensor]
Body = Callable[..., tuple[Tensor, Tensor, Carry]]
NARROW = ("w_in", "w_out", "values")  # what comes in the layer's dtype; the rest is float32
WAYS = {"causal_hyper_mix", "causal_hyper_mix_backward"}


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time for each token, so that short sequences have to have several chunks."""
    torch.manual_seed(0)
    if dispatch.INTERPRETED:
        from tokmix.ops.causal_hyper_mix import launch

        monkeypatch.setattr(launch, "CHUNK", 16)
        monkeypatch.setattr(op, "CHUNK", 16)


def draw(device: str, B: int, H: int, L: int, k: int, e: int, decay: bool, empty: bool = False) -> Tensors:
    normal = lambda *shape: torch.randn(*shape, device=device)
    given = {"w_in": normal(B, H, L, k), "w_out": normal(B, H, L, k), "values": normal(B, L, H, e).transpose(1, 2)}
    if decay:  # from forgetting at once to hardly ever
        given["log_decay"] = F.logsigmoid(3 * normal(B, H, L) + 2)
    keep = 0.0 if empty else 1.0
    return given | {"hidden": keep * normal(B, H, k, e), "count": keep * 5 * torch.rand(B, H, device=device)}


def scan(body: Body, t: Tensors, real: Tensor | None = None, power: float | None = None) -> Tensors:
    y, counts, carry = body(t["w_in"], t["w_out"], t["values"], t.get("log_decay"), real, power, Carry(t["hidden"], t["count"]))
    return {"y": y, "counts": counts, "last hidden": carry.hidden, "last count": carry.count}


def with_gradients(body: Body, given: Tensors, dys: Tensors, wide: bool, real: Tensor | None, power: float | None) -> Tensors:
    return by_name(lambda t: scan(body, t, real, power), given, dys, wide)


def check(given: Tensors, dtype: torch.dtype, real: Tensor | None = None, power: float | None = None) -> None:
    ours, plain = (lambda t, body=body: scan(body, t, real, power) for body in (select.causal_hyper_mix, reference.causal_hyper_mix))
    check_causal(ours, plain, given, dtype, WAYS, real)


SHAPES = {  # B, H, L, k, e
    "chunks": (1, 2, 37, 16, 16),
    "odd": (2, 1, 19, 5, 7),
    "one token": (3, 2, 1, 8, 8),
    "several tiles": (1, 1, 6, 70, 40),
    "one number": (1, 1, 18, 1, 1),
}


# ---------------------------------------------------------------- against float64
@each_device
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scan(device: str, shape: str, decay: bool) -> None:
    check(draw(device, *SHAPES[shape], decay), torch.float32)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("k", "e"), [(64, 64), (128, 128), select.WIDEST, (40, 200), (16, 128)], ids=str)
def test_full_size(device: str, k: int, e: int, dtype: torch.dtype) -> None:
    """The widest that programs can hold, too, and chunks as long as they are; on a GPU alone."""
    check(draw(device, 2, 2, 200, k, e, True), dtype)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_dtypes(device: str, dtype: torch.dtype) -> None:
    check(draw(device, 1, 1, 21, 16, 16, True), dtype)


@each_device
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
def test_padding(device: str, decay: bool) -> None:
    """Left, right, in the middle; and a row that is nothing else, from an empty state."""
    real = torch.tensor([[0] * 2 + [1] * 9 + [0] * 3 + [1] * 5, [1] * 17 + [0] * 2, [0] * 19], device=device) != 0
    given = draw(device, 3, 1, 19, 8, 8, decay)
    given["hidden"][2], given["count"][2] = 0, 0
    check(given, torch.float32, real)


@each_device
def test_power_and_an_empty_start(device: str) -> None:
    check(draw(device, 2, 1, 18, 8, 8, True, empty=True), torch.float32, power=1.0)


@each_device
def test_a_memory_without_end(device: str) -> None:
    """A λ so near to 1 that its rounding would add up, and a state much older than the sequence."""
    given = draw(device, 1, 1, 40, 8, 8, True)
    given["log_decay"] = torch.full_like(given["log_decay"], -3e-5)
    given["count"] *= 1000
    check(given, torch.float32)


@each_device
def test_gelu_far_out(device: str) -> None:
    """States from 0 to far beyond what the polynomial was fitted to."""
    given = draw(device, 1, 1, 20, 16, 16, False, empty=True)
    given["hidden"] = torch.linspace(-60, 60, 256, device=device).view(1, 1, 16, 16)
    given["w_in"] *= 1e-3
    check(given, torch.float32)


# ---------------------------------------------------------------- in parts, other layouts
@each_device
def test_two_parts_are_one_pass(device: str) -> None:
    given = draw(device, 2, 1, 30, 8, 8, True)
    real = torch.rand(2, 30, device=device) > 0.2
    part = lambda at: {name: x[:, :, at] if name in (*NARROW, "log_decay") else x for name, x in given.items()}
    with implementation("triton"):
        whole = scan(select.causal_hyper_mix, given, real)
        first = scan(select.causal_hyper_mix, part(slice(0, 13)), real[:, :13])
        carried = part(slice(13, None)) | {"hidden": first["last hidden"], "count": first["last count"]}
        second = scan(select.causal_hyper_mix, carried, real[:, 13:])
    for name in ("y", "counts"):
        torch.testing.assert_close(torch.cat([first[name], second[name]], dim=2), whole[name], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second["last hidden"], whole["last hidden"], rtol=1e-5, atol=1e-5)


@each_device
def test_strides(device: str) -> None:
    given = draw(device, 2, 2, 18, 8, 8, True)
    turned = given | {name: given[name].transpose(2, 3).contiguous().transpose(2, 3) for name in NARROW}
    turned["log_decay"] = given["log_decay"].transpose(1, 2).contiguous().transpose(1, 2)
    results = []
    for start in (given, turned):
        leaves = {name: x.detach().requires_grad_() for name, x in start.items()}
        with implementation("triton"), poisoned():
            y = scan(select.causal_hyper_mix, leaves)["y"]
            results.append((y, *torch.autograd.grad(y.sum(), list(leaves.values()))))  # an expanded gradient, too
    for straight, other in zip(*results, strict=True):
        assert torch.equal(straight, other)


@each_device
def test_joining_the_heads_moves_nothing(device: str) -> None:
    given = draw(device, 2, 3, 5, 8, 4, False)
    with implementation("triton"):
        y = scan(select.causal_hyper_mix, given)["y"]
    assert y.transpose(1, 2).flatten(2).data_ptr() == y.data_ptr()


@each_device
def test_two_runs_give_the_same_bits(device: str) -> None:
    given = draw(device, 1, 2, 20, 8, 8, True)
    dys = {name: torch.randn_like(y) for name, y in scan(reference.causal_hyper_mix, given).items()}
    with implementation("triton"):
        first, second = (with_gradients(select.causal_hyper_mix, given, dys, False, None, None) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_device
@pytest.mark.parametrize("last", [4, 5, 6, 16])
def test_nothing_comes_back_from_the_future(device: str, last: int) -> None:
    """Not even a rounded zero: the gradient of log λ is partly found by differences."""
    given = draw(device, 1, 2, 19, 8, 8, True)
    past = torch.arange(19, device=device) <= last
    with implementation("triton"), poisoned():
        leaves = {name: x.requires_grad_() for name, x in given.items()}
        found = scan(select.causal_hyper_mix, leaves)
        loss = found["y"][:, :, past].square().sum() + found["counts"][:, :, past].square().sum()
        grads = torch.autograd.grad(loss, [leaves[name] for name in ("w_in", "w_out", "values", "log_decay")])
    for grad in grads:
        assert (grad[:, :, past] != 0).any() and (grad[:, :, ~past] == 0).all()


@each_device
def test_mixed_dtypes(device: str) -> None:
    """Under autocast the generated weights are short and the values are not."""
    given = draw(device, 1, 1, 18, 8, 8, True)
    given["w_in"], given["w_out"] = given["w_in"].bfloat16(), given["w_out"].bfloat16()
    dys = {name: torch.randn_like(y) for name, y in scan(reference.causal_hyper_mix, given).items()}
    exact = with_gradients(reference.causal_hyper_mix, given, dys, True, None, None)
    plain = with_gradients(reference.causal_hyper_mix, given, dys, False, None, None)
    with implementation("triton"):
        ours = with_gradients(select.causal_hyper_mix, given, dys, False, None, None)
    assert all(ours[name].dtype == plain[name].dtype for name in plain)
    hold(ours, plain, exact, torch.bfloat16)


@each_device
def test_inside_the_mixer(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=True, max_len=32, heads=2, hidden=24).to(device)
    x = torch.randn(2, 19, 16, device=device)
    segments = tokmix.Segments.from_lengths([19, 12], 19, device=device)
    found = []
    for name, body in (("reference", reference.causal_hyper_mix), ("triton", select.causal_hyper_mix)):
        monkeypatch.setattr(package, "causal_hyper_mix", body)
        with implementation(name):
            leaf = x.detach().requires_grad_()
            y = mixer(leaf, segments)
            grads = torch.autograd.grad(y.square().sum(), [leaf, *mixer.parameters()])
            first, state = mixer.step(x[:1, :7], mixer.init_state(1, x))
            second, _ = mixer.step(x[:1, 7:], state)
        torch.testing.assert_close(torch.cat([first, second], dim=1), y[:1], rtol=1e-4, atol=1e-5)
        found.append((y, *grads))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- compile, registration, counters, choice
@each_device
def test_compiles_whole(device: str) -> None:
    given = draw(device, 1, 1, 18, 8, 8, True)
    dys = {name: torch.randn_like(y) for name, y in scan(reference.causal_hyper_mix, given).items()}

    def body(*given: Any) -> tuple[Tensor, Tensor, Carry]:
        return select.causal_hyper_mix(*given)

    with implementation("triton"):
        compiled = torch.compile(body, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager = with_gradients(body, given, dys, False, None, None)
        found = with_gradients(compiled, given, dys, False, None, None)
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("L", [1, 18])
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
def test_registration(device: str, L: int, decay: bool) -> None:
    """Schema, fake tensors and autograd agree with what the ops do."""
    t = {name: x.requires_grad_() for name, x in draw(device, 1, 1, L, 4, 4, decay).items()}
    scale = torch.rand(1, 1, L, device=device, requires_grad=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = (t["w_in"], t["w_out"], t["values"], t.get("log_decay"), torch.ones(1, L, device=device) > 0, scale, t["hidden"])
    torch.library.opcheck(op.forward.op, given, test_utils=tests)
    if decay:
        torch.library.opcheck(op.counts_forward.op, (t["log_decay"], None, t["count"]), test_utils=tests)


@each_device
def test_operation_counts(device: str) -> None:
    given = {name: x.requires_grad_() for name, x in draw(device, 2, 3, 4, 8, 4, True).items()}
    with FlopCounterMode(display=False) as counter, implementation("triton"):
        scan(select.causal_hyper_mix, given)["y"].sum().backward()
    one = 2 * 2 * 3 * 4 * 8 * 4
    assert counter.get_total_flops() == (3 + 8) * one
    assert flops.causal_hyper_mix(op.Inputs((2, 3, 4, 8), (2, 3, 4, 8), (2, 3, 4, 4), *[None] * 4)) == 3 * one  # type: ignore[arg-type]


def test_what_has_no_kernel_takes_the_reference() -> None:
    if not dispatch.INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
    small, wide = draw("cpu", 1, 1, 3, 4, 4, True), draw("cpu", 1, 1, 3, 4, 300, True)
    for given in ({name: x.double() for name, x in small.items()}, wide):
        with Seen() as seen, implementation("triton"):
            found = scan(select.causal_hyper_mix, given)
        assert not seen.ours
        for name, plain in scan(reference.causal_hyper_mix, given).items():
            assert torch.equal(found[name], plain)


def test_importing_the_choice_leaves_triton_alone() -> None:
    code = "import sys, tokmix.ops.causal_hyper_mix.select; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
