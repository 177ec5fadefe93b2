"""The kernels of block-causal HyperMixing against float64: the output and every gradient, as exact as plain torch.

On a CPU they run in Triton's interpreter, started by `test_in_the_interpreter` of test_kernels.py; on a GPU:
pytest -m gpu tests/test_block_kernel.py
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.kernel_rule import DEVICES, Seen, by_name, check_causal, each_device, hold, poisoned
from tokmix.ops import dispatch
from tokmix.ops.causal_hyper_mix import block_op, blocks, select
from tokmix.ops.dispatch import implementation

Tensors = dict[str, Tensor]
Body = Callable[..., tuple[Tensor, Tensor]]
WAYS = {"block_hyper_mix", "block_hyper_mix_backward"}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def draw(device: str, B: int, H: int, L: int, k: int, e: int, decay: bool) -> Tensors:
    normal = lambda *shape: torch.randn(*shape, device=device)
    given = {"w_in": normal(B, H, L, k), "w_out": normal(B, H, L, k), "values": normal(B, L, H, e).transpose(1, 2)}
    return given | ({"log_decay": F.logsigmoid(3 * normal(B, H, L) + 2)} if decay else {})  # from forgetting at once to hardly ever


def mixed(body: Body, t: Tensors, block: int, real: Tensor | None = None, power: float | None = None) -> Tensors:
    y, counts = body(t["w_in"], t["w_out"], t["values"], t.get("log_decay"), real, power, block)
    return {"y": y, "counts": counts}


def with_gradients(body: Body, t: Tensors, dys: Tensors, wide: bool) -> Tensors:
    return by_name(lambda leaves: mixed(body, leaves, 16), t, dys, wide)


def check(given: Tensors, dtype: torch.dtype, block: int = 16, real: Tensor | None = None, power: float | None = None) -> None:
    ours, plain = (lambda t, body=body: mixed(body, t, block, real, power) for body in (select.block_hyper_mix, blocks.block_hyper_mix))
    check_causal(ours, plain, given, dtype, WAYS, real)


SHAPES = {  # B, H, L, k, e
    "blocks": (1, 2, 37, 16, 16),
    "odd": (2, 1, 35, 5, 7),
    "whole blocks": (1, 1, 32, 24, 8),
    "less than a block": (2, 2, 9, 8, 8),
    "one token": (3, 2, 1, 8, 8),
    "one number": (1, 1, 18, 1, 1),
}


# ---------------------------------------------------------------- against float64
@each_device
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks(device: str, shape: str, decay: bool) -> None:
    check(draw(device, *SHAPES[shape], decay), torch.float32)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_dtypes(device: str, dtype: torch.dtype) -> None:
    check(draw(device, 1, 1, 40, 16, 16, True), dtype)


@each_device
def test_larger_blocks_and_another_power(device: str) -> None:
    check(draw(device, 1, 1, 70, 20, 40, True), torch.float32, block=32, power=1.0)


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("block", "k", "e"), [(64, 64, 64), (32, 64, 64), (128, 32, 32), (128, 64, 64), (64, 40, 24), (16, 128, 128), (64, 128, 128)], ids=str
)
def test_full_size(device: str, block: int, k: int, e: int, dtype: torch.dtype) -> None:
    """The widest that a program can hold, too; on a GPU alone."""
    if block * max(k, e) > select.ON_CHIP[dtype.itemsize]:
        pytest.skip("in float32 such blocks take plain torch")
    check(draw(device, 2, 2, 300, k, e, True), dtype, block)


WIDTHS = (16, 32, 64, 128)
TILES = [(block, k, e) for block in select.BLOCKS for k in WIDTHS for e in WIDTHS if block * max(k, e) <= select.ON_CHIP[2]]


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize(("block", "k", "e"), TILES, ids=str)
def test_every_tile(device: str, block: int, k: int, e: int) -> None:
    """k and e of any two widths: the tiles are square, and the narrower one is padded."""
    check(draw(device, 2, 2, 300, k, e, True), torch.bfloat16, block)


@each_device
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
def test_padding(device: str, decay: bool) -> None:
    """Full, with an end inside of a block, with one at its border, and a row of padding alone."""
    real = torch.arange(35, device=device) < torch.tensor([35, 21, 16, 0], device=device)[:, None]
    check(draw(device, 4, 1, 35, 8, 8, decay), torch.float32, real=real)


@each_device
def test_a_memory_without_end(device: str) -> None:
    given = draw(device, 1, 1, 50, 8, 8, True)
    given["log_decay"] = torch.full_like(given["log_decay"], -3e-5)
    check(given, torch.float32)


@each_device
def test_states_far_out(device: str) -> None:
    """GELU far beyond where it is curved."""
    given = draw(device, 1, 1, 40, 16, 16, False)
    given["values"] = given["values"] * torch.logspace(-2, 2, 16, device=device)
    check(given, torch.float32)


# ---------------------------------------------------------------- other layouts, bits, the future
@each_device
def test_strides(device: str) -> None:
    given = draw(device, 2, 2, 35, 8, 8, True)
    turned = {name: x.transpose(-2, -1).contiguous().transpose(-2, -1) for name, x in given.items()}
    results = []
    for start in (given, turned):
        leaves = {name: x.detach().requires_grad_() for name, x in start.items()}
        with implementation("triton"), poisoned():
            y = mixed(select.block_hyper_mix, leaves, 16)["y"]
            results.append((y, *torch.autograd.grad(y.sum(), list(leaves.values()))))  # an expanded gradient, too
    for straight, other in zip(*results, strict=True):
        assert torch.equal(straight, other)
    assert y.transpose(1, 2).flatten(2).data_ptr() == y.data_ptr(), "joining the heads moves nothing"


@each_device
def test_two_runs_give_the_same_bits(device: str) -> None:
    given = draw(device, 1, 2, 35, 8, 8, True)
    dys = {name: torch.randn_like(y) for name, y in mixed(blocks.block_hyper_mix, given, 16).items()}
    with implementation("triton"):
        first, second = (with_gradients(select.block_hyper_mix, given, dys, False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_device
@pytest.mark.parametrize("last", [4, 15, 16, 30])
def test_nothing_comes_back_from_the_future(device: str, last: int) -> None:
    """Not even a rounded zero."""
    given = draw(device, 1, 2, 40, 8, 8, True)
    past = torch.arange(40, device=device) <= last
    with implementation("triton"), poisoned():
        leaves = {name: x.requires_grad_() for name, x in given.items()}
        found = mixed(select.block_hyper_mix, leaves, 16)
        loss = found["y"][:, :, past].square().sum() + found["counts"][:, :, past].square().sum()
        grads = torch.autograd.grad(loss, list(leaves.values()))
    for grad in grads:
        assert (grad[:, :, past] != 0).any() and (grad[:, :, ~past] == 0).all()


@each_device
def test_mixed_dtypes(device: str) -> None:
    """Under autocast the generated weights are short and the values are not."""
    given = draw(device, 1, 1, 35, 8, 8, True)
    given["w_in"], given["w_out"] = given["w_in"].bfloat16(), given["w_out"].bfloat16()
    dys = {name: torch.randn_like(y) for name, y in mixed(blocks.block_hyper_mix, given, 16).items()}
    exact, plain = (with_gradients(blocks.block_hyper_mix, given, dys, wide) for wide in (True, False))
    with implementation("triton"), Seen() as seen:
        ours = with_gradients(select.block_hyper_mix, given, dys, False)
    assert seen.ours >= WAYS and all(ours[name].dtype == plain[name].dtype for name in plain)
    hold(ours, plain, exact, torch.bfloat16)


@each_device
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_inside_the_mixer(device: str, tied: bool) -> None:
    mixer = tokmix.create("hypermixing", 16, causal=True, max_len=64, heads=2, hidden=24, block=16, tied=tied).to(device)
    x = torch.randn(2, 39, 16, device=device)
    segments = tokmix.Segments.from_lengths([39, 22], 39, device=device)
    found = []
    for name in ("reference", "triton"):
        with implementation(name), Seen() as seen:
            leaf = x.detach().requires_grad_()
            y = mixer(leaf, segments)
            found.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *mixer.parameters()])))
        assert (seen.ours >= WAYS) == (name == "triton")
        with torch.no_grad(), implementation(name):
            first, state = mixer.step(x[:1, :7], mixer.init_state(1, x))
            second, _ = mixer.step(x[:1, 7:], state)
        torch.testing.assert_close(torch.cat([first, second], dim=1), y[:1], rtol=1e-4, atol=1e-5)
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- compile, registration, counters, choice
@each_device
def test_compiles_whole(device: str) -> None:
    given = draw(device, 1, 1, 35, 8, 8, True)
    dys = {name: torch.randn_like(y) for name, y in mixed(blocks.block_hyper_mix, given, 16).items()}

    def body(*given: object) -> tuple[Tensor, Tensor]:
        return select.block_hyper_mix(*given)  # type: ignore[arg-type]

    with implementation("triton"):
        compiled = torch.compile(body, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        eager, found = (with_gradients(one, given, dys, False) for one in (body, compiled))
    for name in eager:
        torch.testing.assert_close(found[name], eager[name], rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("L", [9, 35])
@pytest.mark.parametrize("decay", [True, False], ids=["decay", "no decay"])
def test_registration(device: str, L: int, decay: bool) -> None:
    """Schema, fake tensors and autograd agree with what the op does."""
    t = {name: x.requires_grad_() for name, x in draw(device, 1, 1, L, 4, 4, decay).items()}
    scale = (0.1 + torch.rand(1, 1, L, device=device)).requires_grad_()
    given = (t["w_in"], t["w_out"], t["values"], t.get("log_decay"), torch.ones(1, L, device=device) > 0, scale, 16)
    torch.library.opcheck(block_op.forward.op, given, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@each_device
def test_operation_counts(device: str) -> None:
    """Forward what `block_flops` counts, but for the scan over borders, which takes no products here."""
    given = {name: x.requires_grad_() for name, x in draw(device, 2, 3, 40, 8, 4, True).items()}
    with FlopCounterMode(display=False) as counter, implementation("triton"):
        y = mixed(select.block_hyper_mix, given, 16)["y"]
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 2 * blocks.block_flops(40, 16, 3, 4, 8, decay=False)
    column, state = 2 * 2 * 3 * 48 * 16, 2 * 2 * 3 * 32 * 8 * 4
    assert counter.get_total_flops() - forward == column * (3 * 8 + 2 * 4) + 5 * state


def test_what_has_no_kernel_takes_the_reference() -> None:
    if not dispatch.INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
    small, wide = draw("cpu", 1, 1, 20, 4, 4, True), draw("cpu", 1, 1, 20, 4, 130, True)
    for given, block in (
        ({name: x.double() for name, x in small.items()}, 16),
        (wide, 16),
        (small, 5),
        (draw("cpu", 1, 1, 20, 64, 4, True), 128),
    ):
        with Seen() as seen, implementation("triton"):
            found = mixed(select.block_hyper_mix, given, block)
        assert not seen.ours
        for name, plain in mixed(blocks.block_hyper_mix, given, block).items():
            assert torch.equal(found[name], plain)


def test_rows_far_apart_are_brought_together() -> None:
    """Kernels count inside of a block in 32 bits."""
    launch = pytest.importorskip("tokmix.ops.causal_hyper_mix.launch")
    near, far = (torch.empty_strided((2, 1, 40, 8), (8, 8, row, 1), device="meta") for row in (2**23, 2**24))
    assert launch.last_dim_contiguous(near) is near and launch.last_dim_contiguous(far).stride() == (320, 320, 8, 1)


@each_device
def test_nothing_asked_of_the_output(device: str) -> None:
    class Deaf(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(ctx: object, dy: Tensor) -> None:
            return None

    for run in (select.block_hyper_mix, torch.compile(select.block_hyper_mix, backend="aot_eager")):
        given = {name: x.requires_grad_() for name, x in draw(device, 1, 1, 20, 4, 4, True).items()}
        with implementation("triton"):
            found = mixed(run, given, 16)
            (Deaf.apply(found["y"]).sum() + found["counts"].sum()).backward()  # type: ignore[no-untyped-call]
        assert [name for name, x in given.items() if x.grad is not None and x.grad.any()] == ["log_decay"]


def test_what_blocks_need_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    needs: list[int] = []
    monkeypatch.setattr(select, "use_triton", lambda x, dtype, fits, needed: needs.append(needed) or fits)
    for block, k, e in ((64, 64, 64), (128, 64, 64), (32, 128, 128), (64, 128, 64), (64, 65, 80)):
        given = draw("cpu", 1, 1, 4, k, e, False)
        with implementation("triton"):
            assert select._block_kernel(*(given[name].bfloat16() for name in ("w_in", "w_out", "values")), block)
    assert needs == [dispatch.ANY_GPU, *[dispatch.A100] * 2, *[dispatch.H100] * 2]  # 128 x 64 takes a tile of 128 x 128


def test_a_gpu_is_given_the_kernels_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every size that fits; in float32 where they are asked for alone."""
    monkeypatch.setattr(select, "use_triton", lambda x, dtype, fits, needs: fits)

    def taken(dtype: torch.dtype, block: int = 16, k: int = 4, e: int = 4) -> bool:
        given = draw("cpu", 1, 1, 20, k, e, True)
        return select._block_kernel(*(given[name].to(dtype) for name in ("w_in", "w_out", "values")), block)

    assert taken(torch.bfloat16) and taken(torch.float16) and taken(torch.bfloat16, 128, 64, 64) and taken(torch.bfloat16, 16, 64, 16)
    assert not taken(torch.float32) and not taken(torch.bfloat16, 128, 128, 64) and not taken(torch.bfloat16, 24, 64, 64)
    with implementation("triton"):
        assert taken(torch.float32) and not taken(torch.bfloat16, 128, 128, 64)
