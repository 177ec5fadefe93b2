"""HyperMixing with one head or wide ones, large products with kernels between them: against float64, and as a torch op.

On a CPU in Triton's interpreter, started by `test_in_the_interpreter` of test_kernels.py; on a GPU:
pytest -m gpu tests/test_one_head_kernel.py
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import lay_out, tokens
from tests.kernel_cases import fused, net_of, textbook
from tests.kernel_rule import (
    DTYPES,
    Seen,
    Tensors,
    check,
    draw,
    each_device,
    few_programs,  # noqa: F401  (a fixture for every test)
    poisoned,
    with_gradients,
)
from tokmix.ops import dispatch
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mix import reassociated, select, wide, wide_op


@pytest.fixture(autouse=True)
def no_sequence_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones have a kernel of their own."""
    monkeypatch.setattr(select, "SHORT", 0)


# heads, channels and inner width of one, generated units; the kernel for heads takes none of these in float32
SIZES = {"one": (1, 72, 72, 40), "inner": (1, 20, 13, 33), "heads": (2, 12, 7, 5), "large": (1, 136, 136, 300), "narrow": (4, 32, 24, 64)}


def case(device: str, T: int, size: str, tied: bool, biased: bool = True, normed: bool = True, coded: bool = False) -> Tensors:
    H, e, i, k = SIZES[size]
    shapes: dict[str, tuple[int, ...]] = {"x": (3, T, H * e)}
    for second in ("",) if tied else ("", "2"):
        shapes |= {"U" + second: (H, e, i), "V" + second: (H, i, k)}
        shapes |= {"b" + second: (H, i), "c" + second: (H, k)} if biased else {}
    shapes |= {"gain": (H * e,), "bias": (H * e,)} if normed else {}
    return draw(device, **shapes, **({"tokens": (3, T, H * e)} if coded else {}))


def judge(given: Tensors, dtype: torch.dtype, scales: tuple[Tensor | None, Tensor | None] = (None, None)) -> None:
    check(lambda t: fused(t, None, scales), lambda t: textbook(t, None, scales), given, dtype, "wide_hyper_mix")


@each_device
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("size", ["one", "inner", "heads"])
def test_float32(device: str, size: str, tied: bool) -> None:
    judge(case(device, 40, size, tied), torch.float32)


@each_device
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(("size", "tied"), [("inner", False), ("large", True)])
def test_half_precision(device: str, dtype: torch.dtype, size: str, tied: bool) -> None:
    judge(case(device, 37, size, tied), dtype)


@each_device
@pytest.mark.parametrize("options", [{"biased": False}, {"normed": False}, {"biased": False, "normed": False}, {"coded": True}], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_options(device: str, options: dict, tied: bool) -> None:
    judge(case(device, 19, "heads", tied, **options), torch.float32)


@each_device
@pytest.mark.parametrize("single", [False, True])
def test_scales(device: str, single: bool) -> None:
    scales = tuple(torch.rand(1 if single else 3, device=device) + 0.5 for _ in range(2))
    judge(case(device, 9, "inner", True, normed=False), torch.float32, scales)


@each_device
@pytest.mark.parametrize(("T", "size"), [(1, "inner"), (2, "inner"), (130, "one")])
def test_lengths(device: str, T: int, size: str) -> None:
    # The norm, which looks at each token alone, is left to longer ones: of a handful, one badly conditioned decides over all errors.
    judge(case(device, T, size, False, normed=T > 2), torch.float32)


@each_device
def test_long_sequences_are_cut(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "SHORTEST_PIECE", 4)
    monkeypatch.setattr(wide, "processors", lambda device: 64)
    a, b = draw(device, a=(3, 32, 5), b=(3, 32, 7)).values()
    torch.testing.assert_close(wide.over_tokens(a, b, a.dtype), a.mT @ b)
    judge(case(device, 32, "inner", False), torch.float32)


@each_device
@pytest.mark.parametrize("T", [64, 512])
def test_what_tokens_have_in_common_is_not_rounded_before_it_cancels(device: str, T: int) -> None:
    """V_1 asks for differences between columns of M, whose common part is far larger; of few tokens it is rounded."""
    H, B, e, i = 2, 3, 16, 8
    values, h = (1 + 0.1 * torch.randn(H * B, T, n, device=device).bfloat16() for n in (e, i))
    outer = torch.tensor([1.0, -1.0], device=device).repeat(i // 2)[:, None].expand(H, i, 5).bfloat16()
    states, hidden = wide.states_and_hidden(values, h, outer, H)
    assert states.dtype == torch.bfloat16 and (hidden.dtype == torch.float32) == reassociated.loses_digits(T, e, states.dtype) == (T == 512)
    torch.testing.assert_close(states[..., :i].double(), (values.double().mT @ h.double()).view(H, B * e, i), rtol=2**-8, atol=0)
    exact = (values.double().mT @ h.double()).view(H, B * e, i) @ outer.double()
    error = (hidden.double() - exact).norm() / exact.norm()
    assert (error < 1e-3) == (T == 512), error


@each_device
@pytest.mark.parametrize("tied", [False] if dispatch.INTERPRETED else [False, True])
def test_long_sequences_with_much_in_common(device: str, tied: bool) -> None:
    """Every error that tokens share adds up over them: sums rounded too early, numbers cut off instead of rounded."""
    given = case(device, 512, "narrow", tied)
    given["x"] += 0.5
    judge(given, torch.bfloat16)


@each_device
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("size", ["inner", "heads"])
def test_a_product_for_every_sequence(device: str, size: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "WORTH_A_PRODUCT", 32)
    judge(case(device, 40, size, False), dtype)


@each_device
def test_a_zero_gain(device: str) -> None:
    """The norm's gradient must not be taken from the output by dividing by its gain."""
    given = case(device, 10, "inner", True)
    given["gain"][::3] = 0
    judge(given, torch.float32)


LAYOUTS = {"whole": None, "padded": [20, 13, 0], "packed": [[13, 5, 2], [], [20]]}


@each_device
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"tied": False}, {"norm": "length"}, {"position": "sinusoidal", "norm": "none"}], ids=str)
def test_the_mixer_picks_it_up(device: str, layout: str, options: dict) -> None:
    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", 32, causal=False, max_len=32, inner=24, hidden=40, **options).to(device)
    given, segments = tokens(3, 20, 32, dtype=torch.float32), None
    if LAYOUTS[layout] is not None:
        segments = tokmix.Segments.from_lengths(LAYOUTS[layout], 20)
        given = lay_out([given.flatten(0, 1)[: int(segments.mask.sum())][None]], segments.ids)  # NaN at padding
        segments = segments.to(device)
    dy = tokens(3, 20, 32, dtype=torch.float32, seed=4).to(device)
    results = []
    for body in ("triton", "reference"):
        mixer.zero_grad()
        x = given.to(device).clone().requires_grad_()
        with implementation(body), Seen() as seen:
            y = mixer(x, segments)
            (y * dy).sum().backward()
        assert seen.ours == ({"wide_hyper_mix", "wide_hyper_mix_backward"} if body == "triton" else set())
        results.append([y.detach(), x.grad, *(p.grad.clone() for p in mixer.parameters())])
    for ours, reference in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert (ours - reference).norm() <= 2e-5 * reference.norm() + 1e-5


# ---------------------------------------------------------------- as a torch op
@each_device
def test_strides_and_repeats(device: str) -> None:
    given = {name: tensor.float() for name, tensor in case(device, 16, "heads", False).items()}
    x = given["x"]
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    dy = torch.randn(3, x.shape[2], 16, device=device).transpose(1, 2)
    with implementation("triton"), poisoned():
        first, again, strided = (
            with_gradients(lambda t: fused(t, None, (None, None)), given | {"x": start}, dy, torch.float32) for start in (x, x, turned)
        )
    for name in first:
        assert torch.equal(first[name], again[name]), name
        torch.testing.assert_close(first[name], strided[name], rtol=1e-5, atol=1e-5)  # a CPU's products depend on alignment


@each_device
def test_registration_and_compilation(device: str) -> None:
    given = {name: tensor.float() for name, tensor in case(device, 16, "heads", False).items()}
    t = {name: tensor.requires_grad_() for name, tensor in given.items()}
    arguments = (t["x"], None, *net_of(t), *net_of(t, "2"), None, None, t["gain"], t["bias"], 1e-5)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(wide_op.forward.op, arguments, test_utils=tests)
    body = lambda t: fused(t, None, (None, None))
    dy = torch.randn_like(given["x"])
    with implementation("triton"):
        compiled = torch.compile(body, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager, found = (with_gradients(each, given, dy, torch.float32) for each in (body, compiled))
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("tied", [False, True])
def test_operation_counts(device: str, tied: bool) -> None:
    """The formulas against what a counter finds in the same algebra in plain torch."""
    given = {name: x.float().requires_grad_() for name, x in case(device, 8, "heads", tied, False, False).items()}
    net_in = net_of(given)
    net_out = net_in if tied else net_of(given, "2")
    with FlopCounterMode(display=False) as ours, implementation("triton"):
        fused(given, None, (None, None)).sum().backward()
    with FlopCounterMode(display=False) as plain:
        reassociated.hyper_mix(given["x"], given["x"], given["x"], net_in, net_out).sum().backward()
    assert ours.get_total_flops() == plain.get_total_flops() > 0


def test_more_sequences_than_a_grid_holds_take_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    if not dispatch.INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
    given = {name: x.float() for name, x in case("cpu", 5, "inner", True).items()}
    for most, op in ((3, {"wide_hyper_mix"}), (2, set())):
        monkeypatch.setattr(select, "DEEPEST", most)
        with Seen() as seen, implementation("triton"):
            fused(given, None, (None, None))
        assert seen.ours == op


def test_where_it_pays() -> None:
    wide_enough = lambda T, heads, e, k: select._wide_pays(T, T, heads, e, k, False, e)
    assert wide_enough(8192, 1, 512, 512) and wide_enough(512, 1, 512, 512) and wide_enough(8192, 4, 128, 128)
    assert not wide_enough(64, 1, 512, 512), "sequences much shorter than the width: the textbook's form is cheaper"
    assert not wide_enough(8192, 8, 64, 64), "heads have a kernel of their own"
