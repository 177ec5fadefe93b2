"""HyperMixing with heads as a custom op: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick, where_asked

# A net is four tensors: U, b, V, c. The second net is empty where both are the same one.
NETS = "Tensor u1, Tensor? b1, Tensor v1, Tensor? c1, Tensor? u2, Tensor? b2, Tensor? v2, Tensor? c2"
_REST = "Tensor? scale, Tensor? readout, Tensor? gain, Tensor? bias, float eps, Tensor? table, Tensor? first, int size, bool full"
_SAVED = "Tensor dy, Tensor states, Tensor read, Tensor z, Tensor mean, Tensor rstd"


def nets(*given: Any) -> tuple[Any, Any]:
    from tokmix.ops.hyper_mix.launch import Nets

    lined: list[Any] = [None if tensor is None else tensor.contiguous() for tensor in given]
    first = Nets(*lined[:4])
    return first, first if lined[4] is None else Nets(*lined[4:])


@on_its_device
def _hyper_mix(x: Tensor, values: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import launch

    return launch.forward(x, values, *nets(*rest[:8]), *rest[8:])


hyper_mix = torch.library.custom_op(
    "tokmix::hyper_mix",
    _hyper_mix,
    mutates_args=(),
    schema=f"(Tensor x, Tensor? values, {NETS}, {_REST}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@hyper_mix.register_fake
def _(x: Tensor, values: Tensor | None, u1: Tensor, b1: Any, v1: Tensor, c1: Any, *rest: Any) -> tuple[Tensor, ...]:
    B, T, _ = x.shape
    H, e, _ = v1.shape
    gain, first = rest[6], rest[10]
    rows, S = e + (c1 is not None), B if first is None else first.shape[0] - 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if gain is None else torch.empty_like(y)
    moments = [x.new_empty(B * T if gain is not None else 0, dtype=torch.float32) for _ in range(2)]
    return y, x.new_empty(H, rows, S, e, dtype=torch.float32), x.new_empty(H, rows, S, e), z, *moments


@on_its_device
def _hyper_mix_backward(dy: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import launch

    saved, (x, values), weights, (scale, readout, gain, _, _, *pieces) = rest[:5], rest[5:7], rest[7:15], rest[15:]
    return launch.backward(dy, saved, x, values, *nets(*weights), scale, readout, gain, *pieces)


hyper_mix_backward = torch.library.custom_op(
    "tokmix::hyper_mix_backward",
    _hyper_mix_backward,
    mutates_args=(),
    schema=f"({_SAVED}, Tensor x, Tensor? values, {NETS}, {_REST}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@hyper_mix_backward.register_fake
def _(dy: Tensor, states: Tensor, read: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    x, values, _, _, v1, _, u2, *_ = rest
    H, rows, _, e = states.shape
    k, D, gain = v1.shape[2], x.shape[2], rest[12]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dvalues = x.new_empty(0) if values is None else torch.empty_like(dx)
    norm = dx.new_empty(0 if gain is None else 2, D, dtype=torch.float32)
    inner = dx.new_empty(1 if u2 is None else 2, H, e + 1, e, dtype=torch.float32)
    return dx, dvalues, inner, dx.new_empty(H, rows, k), dx.new_empty(H, rows, k), norm


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [value if isinstance(value, Tensor) else None for value in inputs]
    ctx.numbers = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.given = len(inputs)
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


@where_asked
def _differentiate(ctx: Any, dy: Tensor, *unused: None) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    tensors, saved = kept[: ctx.given], kept[ctx.given :]
    inputs = [number if tensor is None else tensor for tensor, number in zip(tensors, ctx.numbers, strict=True)]
    _, values, u1, b1, v1, c1, u2, b2, v2, c2, _, _, gain = inputs[:13]
    dx, dvalues, du, dv1, dv2, dnorm = _run_backward(dy, *saved, *inputs)
    e, tied = u1.shape[1], u2 is None
    du = du.to(u1.dtype)  # one cast for all
    if tied:
        grads = [*_parted(du[0], e, u1, b1), *_parted(dv1 + dv2, e, v1, c1), None, None, None, None]
    else:
        grads = [g for d, w in ((du[0], (u1, b1)), (dv1, (v1, c1)), (du[1], (u2, b2)), (dv2, (v2, c2))) for g in _parted(d, e, *w)]
    of_norm = (None, None) if gain is None else dnorm.to(gain.dtype).unbind()
    return dx, None if values is None else dvalues, *grads, None, None, *of_norm, *[None] * 5


def _parted(grad: Tensor, e: int, matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """[H, e + 1, n] -> the gradients of a matrix and, where there is one, its bias."""
    return grad[:, :e].to(matrix.dtype), None if bias is None else grad[:, e].to(bias.dtype)


hyper_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(hyper_mix_backward, _hyper_mix_backward)
run = quick(hyper_mix, _hyper_mix, _keep, _differentiate)
