"""How kernels are judged, and what their tests share: devices, layouts, the rule against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.speed.rule import Body, Tensors, error, judge, poisoned, with_gradients  # noqa: F401  (error: for those who import this file)
from tokmix.core.segments import Segments
from tokmix.ops import dispatch
from tokmix.ops.dispatch import implementation

GPU = torch.cuda.is_available() and not dispatch.INTERPRETED
needs_interpreter = pytest.mark.skipif(not dispatch.INTERPRETED, reason="TRITON_INTERPRET=1 is not set: test_in_the_interpreter sets it")
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="no GPU")]
DEVICES = [pytest.param("cpu", marks=needs_interpreter), pytest.param("cuda", marks=on_gpu)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

each_device = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


class Seen(TorchDispatchMode):
    """Which of our ops ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "tokmix":
            self.ours.add(func._schema.name.removeprefix("tokmix::"))
        return func(*args, **(kwargs or {}))


def without_padding(found: Tensors, mask: Tensor | None) -> Tensors:
    if mask is None:
        return found
    return found | {name: torch.where(mask[..., None], found[name], 0) for name in ("y", "x")}


def hold(ours: Tensors, plain: Tensors, exact: Tensors, dtype: torch.dtype) -> None:
    """The rule, the one that `tokmix bench` refuses by."""
    over = [str(verdict) for verdict in judge(ours, plain, exact, dtype) if not verdict.holds]
    assert not over, "; ".join(over)


def check(
    kernel: Body, plain: Body, given: Tensors, dtype: torch.dtype, op: str, mask: Tensor | None = None, residual: bool = False
) -> None:
    """Forward and every gradient of a kernel: at most twice the error of plain torch in the same dtype, plus its eps.
    mask: where tokens are; elsewhere results are zero unless a residual passes."""
    given = {name: tensor.to(dtype) for name, tensor in given.items()}  # every body starts from the same numbers
    dy = torch.randn(given["x"].shape, device=given["x"].device, dtype=torch.float64).to(dtype)
    if mask is not None:
        dy = dy.masked_fill(~mask[..., None], torch.nan)  # what flows back into padding must not matter
    exact = without_padding(with_gradients(plain, given, dy, torch.float64), mask)
    in_torch = without_padding(with_gradients(plain, given, dy, dtype), mask)
    with implementation("triton"), poisoned(), Seen() as seen:
        ours = with_gradients(kernel, given, dy, dtype)
    assert seen.ours == {op, f"{op}_backward"}
    if mask is not None and not residual:
        assert all((ours[name][~mask] == 0).all() for name in ("y", "x"))
    assert all(ours[name].dtype == in_torch[name].dtype and ours[name].shape == exact[name].shape for name in exact)
    hold(without_padding(ours, mask), in_torch, exact, dtype)


def by_name(run: Callable[[Tensors], Tensors], given: Tensors, dys: Tensors, wide: bool) -> Tensors:
    """Of a body with several results: those that have a gradient, and the gradients of everything given. wide: in float64."""
    leaves = {name: (x.double() if wide else x).detach().requires_grad_() for name, x in given.items()}
    found = {name: y for name, y in run(leaves).items() if y.requires_grad}
    grads = torch.autograd.grad(list(found.values()), list(leaves.values()), [dys[name].to(y.dtype) for name, y in found.items()])
    return {name: y.detach() for name, y in found.items()} | {f"d {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def check_causal(
    kernel: Callable[[Tensors], Tensors],
    plain: Callable[[Tensors], Tensors],
    given: Tensors,
    dtype: torch.dtype,
    ops: set[str],
    real: Tensor | None,
) -> None:
    """The rule for causal HyperMixing: w_in, w_out and values in dtype, the rest in float32. real [B, L]: where tokens are; what stands
    elsewhere must not matter to the state."""
    given = {name: x.to(dtype) if name in ("w_in", "w_out", "values") else x for name, x in given.items()}
    dys = {name: torch.randn_like(y) for name, y in plain(given).items()}
    exact, in_torch = (by_name(plain, given, dys, wide) for wide in (True, False))
    if real is not None:
        given = given | {name: torch.where(real[:, None, :, None], given[name], torch.nan) for name in ("w_in", "values")}
        if "log_decay" in given:
            given["log_decay"] = torch.where(real[:, None], given["log_decay"], torch.nan)
    with implementation("triton"), poisoned(), Seen() as seen:
        ours = by_name(kernel, given, dys, False)
    counted = {"decayed_counts", "decayed_counts_backward"} if "log_decay" in given else set()
    assert seen.ours == ops | counted
    assert all(ours[name].dtype == in_torch[name].dtype and ours[name].shape == exact[name].shape for name in exact)
    hold(ours, in_torch, exact, dtype)


def draw(device: str, **shapes: tuple[int, ...]) -> Tensors:
    """Fresh normal numbers; matrices [H, i, o] scaled by their inputs."""
    draws = {name: torch.randn(*shape, device=device, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: x * x.shape[1] ** -0.5 if name in ("U", "V", "U2", "V2", "W") else x for name, x in draws.items()}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time for each program, so there are fewer and larger ones; several turns each, too."""
    torch.manual_seed(0)
    if dispatch.INTERPRETED:
        from tokmix.ops.hyper_mix import wide
        from tokmix.ops.hyper_mix.kernels import layer_norm as hyper_norm
        from tokmix.ops.shift_mix.kernels import gated, matrix, norm_weighted, weighted

        for module in (gated, norm_weighted, weighted, hyper_norm):
            monkeypatch.setattr(module, "FORWARD", (16, 4, 1, 1) if module is norm_weighted else (32, 4))
            monkeypatch.setattr(module, "BACKWARD", (16, 4, 1, 1))
        monkeypatch.setattr(matrix, "FORWARD", (32, 4))
        monkeypatch.setattr(matrix, "BACKWARD", (32, 4))
        for name in ("GELU_FORWARD", "SPREAD", "FACTORS", "MIDDLE", "MIDDLE_BACKWARD", "NORM_FORWARD"):
            monkeypatch.setattr(wide, name, (32, 4))
        for name in ("GELU_BACKWARD", "NORM_BACKWARD"):
            monkeypatch.setattr(wide, name, (16, 4, 1, 1))
        monkeypatch.setattr(wide, "SUM", (32, 4, 8))


SEGMENTS = {
    "whole": None,
    "padded": Segments.from_lengths([37, 1, 0], 40),
    "left": Segments.from_mask(torch.arange(40) >= torch.tensor([3, 0, 39])[:, None]),
    "packed": Segments.from_lengths([[17, 1, 9], [40], [2, 33]], 40),
}
# The interpreter computes both halves in the same way, slowly: one is enough there.
HALF = [(dtype, "packed") for dtype in (DTYPES[1:2] if dispatch.INTERPRETED else DTYPES[1:])]
each_layout = pytest.mark.parametrize(("dtype", "layout"), [*[(torch.float32, layout) for layout in SEGMENTS], *HALF])


def by_sequence(body: Callable[[Tensor], Tensor], x: Tensor, segments: Segments | None) -> Tensor:
    """A body for rows of one sequence each, applied the slow way."""
    return body(x) if segments is None else segments.join([body(part) for part, _ in segments.split(x)])


def with_nan(x: Tensor, segments: Segments | None) -> Tensor:
    return x if segments is None else x.masked_fill(~segments.mask[..., None], torch.nan)


def at(device: str, layout: str) -> Segments | None:
    segments = SEGMENTS[layout]
    return None if segments is None else segments.to(device)
