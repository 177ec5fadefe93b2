"""HyperMixing with wide heads as a custom op: torch.compile, autograd and operation counters take it whole.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick, where_asked
from tokmix.ops.hyper_mix.op import NETS, nets
from tokmix.ops.hyper_mix.reassociated import loses_digits

_REST = "Tensor? scale, Tensor? readout, Tensor? gain, Tensor? bias, float eps"
_SAVED = "Tensor p, Tensor h, Tensor states, Tensor m, Tensor hidden, Tensor read, Tensor z, Tensor r, Tensor mean, Tensor rstd"
_OUT = ", ".join(["Tensor"] * 11)


@on_its_device
def _wide_hyper_mix(x: Tensor, values: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import wide

    return wide.forward(x, values, *nets(*rest[:8]), *rest[8:])


wide_hyper_mix = torch.library.custom_op(
    "tokmix::wide_hyper_mix", _wide_hyper_mix, mutates_args=(), schema=f"(Tensor x, Tensor? values, {NETS}, {_REST}) -> ({_OUT})"
)


@wide_hyper_mix.register_fake
def _(x: Tensor, values: Tensor | None, u1: Tensor, b1: Any, v1: Tensor, c1: Any, u2: Any, *rest: Any) -> tuple[Tensor, ...]:
    B, T, D = x.shape
    H, e, i = u1.shape
    k, gain, width = v1.shape[2], rest[5], i if u2 is None else 2 * i
    wide = lambda *shape: x.new_empty(*shape, dtype=torch.float32)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tokens = [x.new_empty(H, B * T, width) for _ in range(2)]
    exact = loses_digits(T, e, x.dtype)
    states, read = (x.new_empty(H, B * e, width) for width in (2 * i if exact else i, i))
    hidden = x.new_empty(H, B * e, k, dtype=torch.float32 if exact else x.dtype)
    m = wide(0) if c1 is None else wide(B, D)
    if gain is None:
        return y, *tokens, states, m, hidden, read, x.new_empty(0), wide(0), wide(0), wide(0)
    return y, *tokens, states, m, hidden, read, torch.empty_like(y), wide(0) if c1 is None else wide(B, D), wide(B * T), wide(B * T)


@on_its_device
def _wide_hyper_mix_backward(dy: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import wide

    saved, (x, values), weights, (scale, readout, gain, _, _) = rest[:10], rest[10:12], rest[12:20], rest[20:]
    return wide.backward(dy, saved, x, values, *nets(*weights), scale, readout, gain)


wide_hyper_mix_backward = torch.library.custom_op(
    "tokmix::wide_hyper_mix_backward",
    _wide_hyper_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, {_SAVED}, Tensor x, Tensor? values, {NETS}, {_REST}) -> ({', '.join(['Tensor'] * 8)})",
)


@wide_hyper_mix_backward.register_fake
def _(dy: Tensor, p: Tensor, h: Tensor, states: Tensor, m: Tensor, hidden: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    read, x, values, gain = rest[0], rest[5], rest[6], rest[17]
    H, _, i = read.shape
    D, width, k = x.shape[2], p.shape[2], hidden.shape[2]
    wide = lambda *shape: x.new_empty(*shape, dtype=torch.float32)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dvalues = x.new_empty(0) if values is None else torch.empty_like(dx)
    outer = [x.new_empty(H, i, k) for _ in range(2)]
    return dx, dvalues, x.new_empty(H, D // H, width), wide(H, width), *outer, wide(2, H, k), wide(0 if gain is None else 2, D)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [value if isinstance(value, Tensor) else None for value in inputs]
    ctx.given, ctx.eps = len(inputs), inputs[-1]
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


@where_asked
def _differentiate(ctx: Any, dy: Tensor, *unused: None) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    inputs, saved = [*kept[: ctx.given - 1], ctx.eps], kept[ctx.given :]
    _, values, u1, b1, v1, c1, u2, b2, v2, c2, _, _, gain, *_ = inputs
    dx, dvalues, du, db, dv1, dv2, dc, dnorm = _run_backward(dy, *saved, *inputs)
    i = u1.shape[2]
    like = lambda grad, weight: None if weight is None else grad.to(weight.dtype)
    if u2 is None:
        grads = [like(du, u1), like(db, b1), like(dv1 + dv2, v1), None if c1 is None else like(dc[0] + dc[1], c1), None, None, None, None]
    else:
        grads = [like(du[..., :i], u1), like(db[..., :i], b1), like(dv1, v1), like(dc[0], c1)]
        grads += [like(du[..., i:], u2), like(db[..., i:], b2), like(dv2, v2), like(dc[1], c2)]
    of_norm = (None, None) if gain is None else dnorm.to(gain.dtype).unbind()
    return dx, None if values is None else dvalues, *grads, None, None, *of_norm, None


wide_hyper_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(wide_hyper_mix_backward, _wide_hyper_mix_backward)
run = quick(wide_hyper_mix, _wide_hyper_mix, _keep, _differentiate)
