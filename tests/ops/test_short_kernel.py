"""HyperMixing of short sequences, hidden states on chip: against float64, and as a torch op.

On a CPU in Triton's interpreter, started by `test_in_the_interpreter` of test_kernels.py; on a GPU:
pytest -m gpu tests/test_short_kernel.py
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import lay_out, tokens
from tests.kernel_cases import Scales, net_of, textbook
from tests.kernel_rule import (
    DTYPES,
    Seen,
    Tensors,
    at,
    check,
    draw,
    each_device,
    each_layout,
    few_programs,  # noqa: F401  (a fixture for every test)
    on_gpu,
    poisoned,
    with_gradients,
    with_nan,
)
from tokmix.core.segments import Segments
from tokmix.ops import dispatch, flops  # noqa: F401  (formulas for the counter)
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mix import reference, select, short_op

# heads, channels and inner width of one, generated units
SIZES = {"one": (1, 40, 40, 72), "inner": (1, 33, 13, 17), "heads": (2, 24, 24, 40), "real": (1, 256, 256, 512), "four": (4, 64, 64, 128)}


def tiles_of(tile: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from tokmix.ops.hyper_mix import short as launch

    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(launch, name, dict.fromkeys((True, False), dict.fromkeys((16, 32, 64, 128), launch.Tile(*tile))))


@pytest.fixture(autouse=True)
def never_the_kernels_for_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "SHORTEST", 10**6)
    if dispatch.INTERPRETED:  # it takes its time for each turn of a loop
        tiles_of((64, 64, 4, 1), monkeypatch)


def case(device: str, B: int, T: int, size: str, tied: bool, biased: bool = True, normed: bool = True, coded: bool = False) -> Tensors:
    H, e, i, k = SIZES[size]
    shapes: dict[str, tuple[int, ...]] = {"x": (B, T, H * e)}
    for second in ("",) if tied else ("", "2"):
        shapes |= {"U" + second: (H, e, i), "V" + second: (H, i, k)}
        shapes |= {"b" + second: (H, i), "c" + second: (H, k)} if biased else {}
    shapes |= {"gain": (H * e,), "bias": (H * e,)} if normed else {}
    return draw(device, **shapes, **({"tokens": (B, T, H * e)} if coded else {}))


def short(t: Tensors, segments: Segments | None, scales: Scales = (None, None)) -> Tensor:
    norm = select.Norm(t["gain"], t["bias"], 1e-5) if "gain" in t else None
    where = {} if segments is None else {"chunks": segments.chunks, "longest": segments.longest, "real": segments.mask}
    second = net_of(t, "2") if "U2" in t else None
    return select.mix(t["x"], net_of(t), second, tokens=t.get("tokens"), scale=scales[0], readout=scales[1], norm=norm, **where)


def judge(given: Tensors, dtype: torch.dtype, segments: Segments | None = None, scales: Scales = (None, None)) -> None:
    given = given | {name: with_nan(given[name], segments) for name in ("x", "tokens") if name in given}
    mask = None if segments is None else segments.mask
    check(lambda t: short(t, segments, scales), lambda t: textbook(t, segments, scales), given, dtype, "short_hyper_mix", mask)


@each_device
@each_layout
@pytest.mark.parametrize(("size", "tied"), [("one", True), ("heads", False)])
def test_layouts(device: str, dtype: torch.dtype, layout: str, size: str, tied: bool) -> None:
    if size == "heads" and dtype == torch.float32:
        pytest.skip("in float32 several heads take another way")
    judge(case(device, 3, 40, size, tied), dtype, at(device, layout))


@each_device
@pytest.mark.parametrize("options", [{"biased": False}, {"normed": False}, {"biased": False, "normed": False}, {"coded": True}], ids=str)
@pytest.mark.parametrize(("size", "tied"), [("inner", False)])
def test_options(device: str, options: dict, size: str, tied: bool) -> None:
    judge(case(device, 3, 40, size, tied, **options), torch.float32, at(device, "padded"))


@each_device
@pytest.mark.parametrize(("single", "layout"), [(True, "whole"), (False, "whole"), (False, "packed")])
def test_scales(device: str, single: bool, layout: str) -> None:
    segments = at(device, layout)
    S = 1 if single else 3 if segments is None else len(segments.lengths)
    scales = (torch.rand(S, device=device) + 0.5, torch.rand(S, device=device) + 0.5)
    judge(case(device, 3, 40, "inner", True, normed=False), torch.float32, segments, scales)


@each_device
@pytest.mark.parametrize("T", [1, 17, 65, 128])
def test_lengths(device: str, T: int) -> None:
    judge(case(device, 2, T, "inner", False), torch.float32)


@each_device
@pytest.mark.parametrize(("dtype", "tied"), [(torch.float32, False), (torch.bfloat16, True)])
def test_several_tiles_of_channels(device: str, dtype: torch.dtype, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each adds to the weights' gradients is summed."""
    tiles_of((16, 32, 4, 1), monkeypatch)
    judge(case(device, 3, 40, "one", tied), dtype, at(device, "padded"))


@each_device
@pytest.mark.parametrize(("dtype", "T"), [(torch.bfloat16, 20), (torch.bfloat16, 60), (torch.bfloat16, 128), (torch.float32, 60)])
def test_small_gpus(device: str, dtype: torch.dtype, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller tiles, of which a head takes several."""
    monkeypatch.setattr(dispatch, "room", lambda device: dispatch.ANY_GPU)
    judge(case(device, 1, T, "one", tied=False), dtype)


@each_device
def test_a_table_with_empty_rows(device: str) -> None:
    """As for a CUDA graph, whose rows are all in the table, whatever their lengths."""
    lengths = torch.tensor([20, 0, 7], device=device)
    segments = Segments.padded(lengths, 20)
    given = {name: tensor.float() for name, tensor in case(device, 3, 20, "one", True).items()}
    exact = Segments.from_lengths(lengths, 20, device=device)
    given["x"] = with_nan(given["x"], exact)
    dy = torch.randn(3, 20, 40, device=device)
    with poisoned(), implementation("triton"):
        ours, theirs = (with_gradients(lambda t, s=s: short(t, s), given, dy, torch.float32) for s in (segments, exact))
    for name, found in ours.items():
        assert torch.equal(found, theirs[name]) and found.isfinite().all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize(
    ("size", "dtype"), [("real", dtype) for dtype in DTYPES] + [("four", torch.bfloat16), ("four", torch.float16)], ids=str
)
@pytest.mark.parametrize("longest", [13, 24, 48, 128])
@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_a_text_classifier(device: str, dtype: torch.dtype, longest: int, size: str, tied: bool) -> None:
    """In float32 several heads take another way."""
    lengths = torch.randint(1, longest + 1, (64,))
    lengths[0] = longest
    judge(case(device, 64, longest, size, tied), dtype, Segments.from_lengths(lengths, longest, device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
def test_in_a_graph(device: str) -> None:
    """Recorded once, replayed with other lengths."""
    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", 256, causal=False, max_len=32).to(device, torch.bfloat16)
    x = torch.randn(16, 24, 256, device=device, dtype=torch.bfloat16)
    lengths = torch.full((16,), 24, device=device)

    def step(segments: Segments) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = mixer(leaf, segments)
        return [y.detach(), *torch.autograd.grad(y, [leaf, *mixer.parameters()], torch.ones_like(y))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(Segments.padded(lengths, 24))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step(Segments.padded(lengths, 24))
    lengths.copy_(torch.randint(1, 25, (16,)))
    x.normal_()
    graph.replay()
    for found, expected in zip(recorded, step(Segments.from_lengths(lengths, 24, device=device)), strict=True):
        torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------- the mixer
LAYOUTS = {"whole": None, "padded": [20, 13, 0], "packed": [[13, 5, 2], [], [20]]}
OPTIONS = [{"tied": False}, {"norm": "length"}, {"position": "sinusoidal", "norm": "none"}, {"bias": False}]
MIXERS = [*[(layout, {"norm": "length", "power": 1.0}) for layout in LAYOUTS], *[("padded", options) for options in OPTIONS]]


@each_device
@pytest.mark.parametrize(("layout", "options"), MIXERS, ids=str)
def test_the_mixer_picks_it_up(device: str, layout: str, options: dict) -> None:
    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", 32, causal=False, max_len=32, hidden=40, **options).to(device)
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
        assert seen.ours == ({"short_hyper_mix", "short_hyper_mix_backward"} if body == "triton" else set())
        results.append([y.detach(), x.grad, *(p.grad.clone() for p in mixer.parameters())])
    for ours, expected in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert (ours - expected).norm() <= 2e-5 * expected.norm() + 1e-5
    if segments is not None:
        assert all((found[~segments.mask] == 0).all() for found in results[0][:2])


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert select._short_pays(24, 1, 256, 512, 256) and select._short_pays(128, 1, 512, 512, 512) and select._short_pays(24, 4, 64, 128, 64)
    assert not select._short_pays(129, 1, 512, 512, 512), "longer than a program holds"
    assert not select._short_pays(128, 8, 32, 4096, 32), "units by far outnumber channels: multiplied away they cost less"
    sizes = (1, 256, 512, True, 256)
    assert select.matmul_flops(128, 128, *sizes, gpu=True) == reference.matmul_flops(128, 128, *sizes)
    assert select.matmul_flops(2048, 2048, *sizes, gpu=True) < reference.matmul_flops(2048, 2048, *sizes)


# ---------------------------------------------------------------- as a torch op
def whole(t: Tensors) -> Tensor:
    return short(t, None)


@each_device
def test_strides_and_repeats(device: str) -> None:
    given = {name: tensor.float() for name, tensor in case(device, 3, 16, "one", False).items()}
    x = given["x"]
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    dy = torch.randn(3, x.shape[2], 16, device=device).transpose(1, 2)
    with implementation("triton"), poisoned():
        first, again, strided = (with_gradients(whole, given | {"x": start}, dy, torch.float32) for start in (x, x, turned))
        with Seen():
            watched = with_gradients(whole, given, dy, torch.float32)
    for name in first:
        assert torch.equal(first[name], again[name]) and torch.equal(first[name], watched[name]), name
        torch.testing.assert_close(first[name], strided[name], rtol=1e-5, atol=1e-5)  # a CPU's products depend on alignment


@each_device
def test_autocast(device: str) -> None:
    given = {name: tensor.float() for name, tensor in case(device, 3, 16, "one", True).items()}

    def cast(t: Tensors) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return whole(t)

    with implementation("triton"), Seen() as seen:
        ours = with_gradients(cast, given, torch.randn_like(given["x"]), torch.float32)
    assert seen.ours == {"short_hyper_mix", "short_hyper_mix_backward"}
    assert ours["y"].dtype == torch.bfloat16 and all(ours[name].dtype == torch.float32 for name in given)
    with implementation("reference"):
        exact = whole(given)
    assert (ours["y"] - exact).norm() <= 0.02 * exact.norm()


@each_device
def test_registration_and_compilation(device: str) -> None:
    given = {name: tensor.float() for name, tensor in case(device, 3, 16, "one", False).items()}
    H, _, _, k = SIZES["one"]
    t = {name: tensor.requires_grad_() for name, tensor in (given | draw(device, w1=(H, 48, k), w2=(H, 48, k))).items()}
    w1, w2 = (t[name].detach().float().requires_grad_() for name in ("w1", "w2"))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for second, gain, bias in ((w2, t["gain"], t["bias"]), (None, None, None)):
        arguments = (t["x"], w1, second, None, None, gain, bias, 1e-5, None, 16, True)
        torch.library.opcheck(short_op.forward.op, arguments, test_utils=tests)
    dy = torch.randn_like(given["x"])
    with implementation("triton"):
        compiled = torch.compile(whole, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager, found = (with_gradients(each, given, dy, torch.float32) for each in (whole, compiled))
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("tied", [False, True])
def test_operation_counts(device: str, tied: bool) -> None:
    """The formulas against what a counter finds in the textbook; the way back makes one product again."""
    given = {name: x.float().requires_grad_() for name, x in case(device, 3, 8, "one", tied, False, False).items()}
    H, e, _, k = SIZES["one"]
    with FlopCounterMode(display=False) as ours, implementation("triton"):
        whole(given).sum().backward()
    with FlopCounterMode(display=False) as plain:
        textbook(given, None, (None, None)).sum().backward()
    assert ours.get_total_flops() == plain.get_total_flops() + 2 * 3 * 8 * H * e * k
