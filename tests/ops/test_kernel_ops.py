"""The kernels as torch ops: strides, autocast, compilation, counters; which body is chosen; the re-associated form.

Run by `test_in_the_interpreter` of test_kernels.py; on a GPU: pytest -m gpu tests/test_kernel_ops.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils.flop_counter import FlopCounterMode

from tests import needs
from tests.kernel_cases import HYPER, fused, hyper_case, net_of, textbook
from tests.kernel_rule import (
    Body,
    Seen,
    Tensors,
    draw,
    each_device,
    each_dtype,
    few_programs,  # noqa: F401  (a fixture for every test)
    hold,
    poisoned,
    with_gradients,
)
from tokmix.core.segments import Segments
from tokmix.core.token_offsets import chunks_of, places_of
from tokmix.ops import dispatch, flops
from tokmix.ops.dispatch import implementation
from tokmix.ops.fast_call import on_its_device
from tokmix.ops.hyper_mix import reassociated
from tokmix.ops.hyper_mix.reference import Net
from tokmix.ops.shift_mix import matrix_op
from tokmix.ops.shift_mix import op as shift_op
from tokmix.ops.shift_mix import select as shift

# ---------------------------------------------------------------- strides, autocast, compile, counters
Ops = dict[str, tuple[Tensors, Body]]


def examples(device: str) -> Ops:
    shifting = draw(device, x=(2, 40, 32), a=(2, 16), b=(2, 16), gain=(32,), bias=(32,), W=(2, 16, 16), c=(2, 16), V=(2, 16, 16))
    pick = lambda *names: {name: shifting[name] for name in names}
    return {
        "shift_mix": (pick("x", "a", "b"), lambda t: shift.shift_mix(t["x"], [t["a"], t["b"]], (3, 3))),
        "norm_shift_mix": (
            pick("x", "a", "b", "gain", "bias"),
            lambda t: shift.norm_shift_mix(t["x"], [t["a"], t["b"]], t["gain"], t["bias"], 1e-5, (3, 3)),
        ),
        "gate_shift_mix": (pick("x", "W", "c"), lambda t: shift.gate_shift_mix(t["x"], t["W"], t["c"], (3, 3))),
        "matrix_shift_mix": (pick("x", "W", "V"), lambda t: shift.matrix_shift_mix(t["x"], [t["W"], t["V"]], (3, 3))),
        "hyper_mix": (hyper_case(device, 40, **HYPER["untied"]), lambda t: fused(t, None, (None, None))),
    }


each_op = pytest.mark.parametrize("op", ["shift_mix", "norm_shift_mix", "gate_shift_mix", "matrix_shift_mix", "hyper_mix"])


@each_device
@each_op
@pytest.mark.parametrize("how", ["columns", "turned"])
def test_strides(device: str, op: str, how: str) -> None:
    given, body = examples(device)[op]
    x = given["x"].float()
    B, T, D = x.shape
    if how == "columns":
        strided = torch.full((B, T, D + 8), torch.nan, device=device)[..., 3 : D + 3].copy_(x)
    else:
        strided = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    rest = {name: tensor.float() for name, tensor in given.items() if name != "x"}
    results = []
    for start in (x, strided):
        leaf = start.detach().requires_grad_()
        with implementation("triton"), poisoned():
            y = body({"x": leaf, **rest})
            dy = (
                torch.arange(B * T * D, device=device).view(B, D, T).transpose(1, 2) / 100
                if how == "turned"
                else torch.ones_like(y)[:1, :1].expand_as(y)
            )
            results.append((y, *torch.autograd.grad(y, leaf, dy)))
    for contiguous, other in zip(*results, strict=True):
        assert torch.equal(contiguous, other)


@each_device
@each_op
def test_two_runs_give_the_same_bits(device: str, op: str) -> None:
    given, body = examples(device)[op]
    dy = torch.randn_like(given["x"])
    with implementation("triton"):
        first, second = (with_gradients(body, given, dy, torch.float32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_device
@each_op
def test_past_the_dispatcher(device: str, op: str) -> None:
    """Where nobody watches, an op's body runs as an autograd function: the same bits, and no second derivative in silence."""
    given, body = examples(device)[op]
    dy = torch.randn_like(given["x"])
    with implementation("triton"):
        with Seen() as seen:
            watched = with_gradients(body, given, dy, torch.float32)
        quick = with_gradients(body, given, dy, torch.float32)
        assert seen.ours == {op, f"{op}_backward"}
        assert all(torch.equal(watched[name], quick[name]) for name in watched)
        leaf = given["x"].float().requires_grad_()
        y = body({name: tensor.float() for name, tensor in given.items()} | {"x": leaf})
        assert "Fast" in str(y.grad_fn) or "Fast" in str(y.grad_fn.next_functions)
        (grad,) = torch.autograd.grad(y, leaf, dy.float(), create_graph=True)
        with pytest.raises(RuntimeError, match=f"backward through tokmix.{op}_backward"):
            torch.autograd.grad(grad.sum(), leaf)


@each_device
@each_op
def test_autocast(device: str, op: str) -> None:
    given, body = examples(device)[op]
    given = {name: tensor.float() for name, tensor in given.items()}

    def cast(t: Tensors) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return body(t)

    dy = torch.randn_like(given["x"])
    with implementation("reference"):
        exact = with_gradients(body, given, dy, torch.float64)
        plain = with_gradients(cast, given, dy, torch.float32)
    with implementation("triton"), Seen() as seen:
        ours = with_gradients(cast, given, dy, torch.float32)
    assert seen.ours
    for name in exact:
        assert ours[name].dtype == torch.float32 or name == "y"
    hold(ours, plain, exact, torch.bfloat16)


@each_device
@each_op
def test_compiles_whole(device: str, op: str) -> None:
    given, body = examples(device)[op]
    given = {name: tensor.float() for name, tensor in given.items()}
    dy = torch.randn_like(given["x"])
    with implementation("triton"):
        compiled = torch.compile(body, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager = with_gradients(body, given, dy, torch.float32)
        found = with_gradients(compiled, given, dy, torch.float32)
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@each_op
def test_registration(device: str, op: str) -> None:
    """Schema, fake tensors and autograd agree with what the op does."""
    given, _ = examples(device)[op]
    t = {name: tensor.float().requires_grad_() for name, tensor in given.items()}
    arguments = {
        "shift_mix": lambda: (t["x"], t["a"], t["b"], None, 3, None, None),
        "norm_shift_mix": lambda: (t["x"], t["a"], t["b"], None, t["gain"], t["bias"], 1e-5, 3, None, None),
        "gate_shift_mix": lambda: (t["x"], t["W"], t["c"], False, 3, None, None),
        "matrix_shift_mix": lambda: (t["x"], t["W"], t["V"], None, 3, None, None),
        "hyper_mix": lambda: (t["x"], None, *net_of(t), *net_of(t, "2"), None, None, t["gain"], t["bias"], 1e-5, None, None, 0, True),
    }[op]()
    ours = getattr(torch.ops.tokmix, op).default
    torch.library.opcheck(ours, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@each_device
def test_operation_counts(device: str) -> None:
    """The formula of the op against what a counter finds in the same algebra in plain torch."""
    given = {name: x.float() for name, x in hyper_case(device, 40, **HYPER["plain"]).items()}
    with FlopCounterMode(display=False) as ours, implementation("triton"):
        fused(given, None, (None, None))
    with FlopCounterMode(display=False) as plain:
        reassociated.hyper_mix(given["x"], given["x"], given["x"], net_of(given), net_of(given, "2"))
    assert ours.get_total_flops() == plain.get_total_flops() > 0
    x, W = draw(device, x=(2, 5, 12), W=(3, 4, 4)).values()
    assert flops.gate(matrix_op.GateInputs(x.shape, W.shape, *[None] * 5)) == 2 * x.numel() * 4
    assert flops.matrices(shift_op.Inputs(x.shape, W.shape, W.shape, *[None] * 4)) == 4 * x.numel() * 4


@each_device
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 0, 5), (3, 64, 70), (2, 65, 3, 16), (1, 600, 33)])
def test_parts_are_added_up(device: str, shape: tuple[int, ...]) -> None:
    from tokmix.ops.kernels.partials import sum_partials

    parts = torch.randn(shape, device=device)
    with poisoned():
        found = sum_partials(parts)
    torch.testing.assert_close(found.double(), parts.double().sum(1), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- the re-associated form, the choice, the layouts
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@each_dtype
def test_reassociated(dtype: torch.dtype, tied: bool, biased: bool) -> None:
    given = hyper_case("cpu", 20, 2, 8, 24, biased, tied, False, False)
    given = {name: tensor.to(dtype) for name, tensor in given.items()}
    dy = torch.randn_like(given["x"])

    def body(t: Tensors) -> Tensor:
        net_in = net_of(t)
        return reassociated.hyper_mix(t["x"], t["x"], t["x"], net_in, net_in if tied else net_of(t, "2"))

    exact = with_gradients(lambda t: textbook(t, None, (None, None)), given, dy, torch.float64)
    plain = with_gradients(lambda t: textbook(t, None, (None, None)), given, dy, dtype)
    ours = with_gradients(body, given, dy, dtype)
    hold(ours, plain, exact, dtype)


@pytest.mark.parametrize("cast", [False, True], ids=["bfloat16", "autocast"])
def test_reassociated_of_many_tokens_that_have_much_in_common(cast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near as the textbook, whose errors average out over tokens; with rounded sums it would not be."""
    H, T, e, k = 2, 1037, 8, 12
    h, values = (1 + 0.1 * torch.randn(3, H, T, e).bfloat16() for _ in range(2))
    V = torch.tensor([1.0, -1.0]).repeat(e // 2)[:, None].expand(H, e, k).bfloat16()
    net = Net(torch.empty(H, e, e), None, V, torch.zeros(H, k, dtype=V.dtype))
    exact = (h.double() @ V.double()).mT @ values.double()
    given = [x.float() if cast else x for x in (h, values)]

    def error(mix: Callable[[Tensor, Tensor], Tensor]) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            return ((mix(*given).double() - exact).norm() / exact.norm()).item()

    ours = lambda h, values: reassociated._hidden(h, values, net)
    allowed = 2 * error(lambda h, values: (h @ V).mT @ values) + torch.finfo(torch.bfloat16).eps
    assert error(ours) <= allowed
    monkeypatch.setattr(reassociated, "loses_digits", lambda *given: False)
    assert error(ours) > allowed


def test_reassociated_on_the_meta_device() -> None:
    x, inner, outer = (torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((2, 512, 16), (2, 8, 8), (2, 8, 12)))
    net = Net(inner, None, outer, None)
    y = reassociated.hyper_mix(x, x, x, net, net)
    assert y.shape == x.shape and y.dtype == x.dtype


def test_reassociated_pays_as_the_algebra_says() -> None:
    long = 10**6
    for e in (64, 512):
        assert reassociated.pays(long, long, 1, e, e // 2 + 1, False) and not reassociated.pays(long, long, 1, e, e // 2, False)
        assert reassociated.pays(long, long, 1, e, 2 * e // 3 + 1, True) and not reassociated.pays(long, long, 1, e, 2 * e // 3, True)
    assert not reassociated.pays(64, 64, 1, 512, 512, False)  # a sequence much shorter than the width


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("T", "shift_by"), [(1, 1), (7, 3), (7, 7), (7, 9)])
@pytest.mark.parametrize("width", [1, 4])
def test_shift_mix_in_place_on_a_cpu(T: int, shift_by: int, both_ways: bool, width: int) -> None:
    given = draw("cpu", x=(2, T, 12), **dict.fromkeys("abc" if both_ways else "ab", (3, width)))
    body = lambda t: shift.shift_mix(t["x"], [t[name] for name in given if name != "x"], (shift_by,) * 3)
    dy = torch.randn_like(given["x"])
    with implementation("reference"):
        plain = with_gradients(body, given, dy, torch.float64)
    ours = with_gradients(body, given, dy, torch.float64)
    for name in plain:
        torch.testing.assert_close(ours[name], plain[name])
    leaves = tuple(tensor.requires_grad_() for tensor in given.values())
    assert "_Weighted" in str(body(given).grad_fn.next_functions)
    assert torch.autograd.gradgradcheck(lambda *tensors: body(dict(zip(given, tensors, strict=True))), leaves)


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 40, 32)
    assert not dispatch.use_triton(x, x.dtype, fits=True)
    with implementation("reference"):
        assert not dispatch.use_triton(x, x.dtype, fits=True)
    if dispatch.INTERPRETED:
        with implementation("triton"):
            assert dispatch.use_triton(x, x.dtype, fits=True)
            assert not dispatch.use_triton(x, x.dtype, fits=False)
            assert not dispatch.use_triton(x, torch.float64, fits=True)
    else:
        with implementation("triton"), pytest.raises(ValueError, match="TRITON_INTERPRET"):
            dispatch.use_triton(x, x.dtype, fits=True)
    with pytest.raises(ValueError, match="did you mean 'triton'"), implementation("tritn"):
        pass
    monkeypatch.setenv("TOKMIX_IMPL", "referense")
    with pytest.raises(ValueError, match="TOKMIX_IMPL"):
        dispatch._from_environment()


def test_every_op_runs_on_the_gpu_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current GPU, which need not be the one a model was moved to."""
    entered = []

    @contextmanager
    def entering(device: torch.device) -> Iterator[None]:
        entered.append(device.index)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", entering)
    body = on_its_device(lambda x: len(entered))
    at = lambda name: SimpleNamespace(device=torch.device(name))
    assert [body(at("cpu")), body(at("cuda:0")), body(at("cuda:1"))] == [0, 0, 1] and entered == [1]
    ours = {name: op for name, op in OPDEFS.items() if name.startswith("tokmix::")}
    assert {f"tokmix::{name}" for name in ("shift_mix", "hyper_mix_backward", "hyper_mlp", "decayed_counts", "shift_step")} <= set(ours)
    assert [name for name, op in ours.items() if not hasattr(op._init_fn, "__wrapped__")] == []


def test_importing_ops_leaves_triton_alone() -> None:
    code = "import sys, tokmix.ops.hyper_mix.select, tokmix.ops.shift_mix.select; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_places_and_chunks() -> None:
    packed = Segments(torch.tensor([[1, 1, 1, 2, 2, 0], [0, 3, 3, 3, 3, 3]]))
    places = places_of(packed)
    assert places is not None
    assert places[0].tolist() == [[0, 1, 2, 0, 1, -1], [-1, 0, 1, 2, 3, 4]]
    assert places[1].tolist() == [[2, 1, 0, 1, 0, -1], [-1, 4, 3, 2, 1, 0]]
    chunks = chunks_of(packed, 2)
    assert chunks is not None and not chunks.full
    assert chunks.table.tolist() == [[0, 0, 2], [0, 2, 3], [1, 3, 5], [2, 7, 9], [2, 9, 11], [2, 11, 12]]
    assert chunks.first.tolist() == [0, 2, 3, 6]
    padded = chunks_of(Segments.from_lengths([2, 0, 3]), 4)
    assert padded is not None and padded.first.tolist() == [0, 1, 1, 2] and padded.table.tolist() == [[0, 0, 2], [2, 6, 9]]
    holes = Segments.from_mask(torch.tensor([[True, False, True]]))
    assert places_of(holes) is None and chunks_of(holes) is None


@each_device
def test_what_tokens_have_in_common_is_not_rounded_before_it_cancels(device: str) -> None:
    """V_1 asks for differences between rows of M, whose common part is thousands of times as large."""
    from tokmix.ops.hyper_mix import launch
    from tokmix.ops.hyper_mix.kernels import hidden_state

    e, k = 32, 16
    small = torch.randn(1, e, 1, e, device=device)
    V = torch.tensor([1.0, -1.0], device=device).repeat(e // 2)[:, None].expand(e, k) * torch.arange(1, k + 1, device=device)
    found = torch.empty(1, e, 1, e, dtype=torch.bfloat16, device=device)
    how = (True, True, k, k, e, e, e, launch.KINDS[torch.bfloat16], "ieee")
    weights = (V.bfloat16().contiguous(), None)
    hidden_state.middle_forward[(1, 1)](4096 + small, *weights, *weights, None, None, found, 1, *how)
    exact = V.double() @ torch.nn.functional.gelu(V.double().T @ small[0, :, 0].double())
    assert (found[0, :, 0].double() - exact).norm() <= 1e-2 * exact.norm()


# ---------------------------------------------------------------- offsets beyond 32 bits
def test_tokens_far_apart_are_brought_together() -> None:
    """Kernels count inside of a piece of a sequence in 32 bits."""
    launch = pytest.importorskip("tokmix.ops.hyper_mix.launch")
    near, far = (torch.empty_strided((2, 40, 8), (8, row, 1), device="meta") for row in (2**18, 2**19))
    assert launch.last_dim_contiguous(near) is near and launch.last_dim_contiguous(far).stride() == (320, 8, 1)


@each_device
def test_last_row_of_many_sequences(device: str) -> None:
    """[e + 1, S, e] of so many sequences that its last row begins beyond 32 bits; most of the memory is never touched."""
    from tokmix.ops.hyper_mix import launch
    from tokmix.ops.hyper_mix.kernels import hidden_state

    e, sequences = 64, 2**31 // 64**2 + 1
    given, found = (needs.memory((e + 1) * sequences * e, torch.float16, device).view(1, e + 1, sequences, e) for _ in range(2))
    given[0, :, 0] = torch.randn(e + 1, e)
    weights = torch.randn(e, 16, device=device).half(), torch.randn(16, device=device).half()
    how = (True, True, 16, 16, e, e + 1, e, launch.KINDS[torch.float16], "ieee")
    hidden_state.middle_forward[(1, 1)](given, *weights, *weights, None, None, found, sequences, *how)
    V, c, M, m = *(x.double() for x in weights), given[0, :e, 0].double(), given[0, e, 0].double()
    G = torch.nn.functional.gelu(V.T @ M + c[:, None] * m)
    torch.testing.assert_close(found[0, e, 0].double(), c @ G, rtol=2e-2, atol=0.1)
