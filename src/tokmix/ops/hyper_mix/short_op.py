"""HyperMixing of short sequences as a custom op: torch.compile, autograd and operation counters take the kernels whole.

The op begins where the hypernetworks end: it takes the matrices they generate. Importing this needs torch alone; the kernels
are loaded when the op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick, where_asked

_GIVEN = (
    "Tensor x, Tensor w1, Tensor? w2, Tensor? scale, Tensor? readout, Tensor? gain, Tensor? bias, float eps, "
    "Tensor? table, SymInt longest, bool full"
)


@on_its_device
def _short_hyper_mix(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import short

    return short.forward(*given)


short_hyper_mix = torch.library.custom_op(
    "tokmix::short_hyper_mix", _short_hyper_mix, mutates_args=(), schema=f"({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)"
)


@short_hyper_mix.register_fake
def _(x: Tensor, w1: Tensor, w2: Tensor | None, scale: Any, readout: Any, gain: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    B, T, _ = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.new_empty(0) if gain is None else torch.empty_like(y)
    return y, z, *(x.new_empty(B * T if gain is not None else 0, dtype=torch.float32) for _ in range(2))


@on_its_device
def _short_hyper_mix_backward(dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, *given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mix import short

    x, w1, w2, scale, readout, gain, _, _, *where = given
    return short.backward(dy, (z, mean, rstd), x, w1, w2, scale, readout, gain, *where)


short_hyper_mix_backward = torch.library.custom_op(
    "tokmix::short_hyper_mix_backward",
    _short_hyper_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, Tensor z, Tensor mean, Tensor rstd, {_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@short_hyper_mix_backward.register_fake
def _(dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, *given: Any) -> tuple[Tensor, ...]:
    x, w1, w2, _, _, gain, *_ = given
    dx, dw1 = (torch.empty(like.shape, dtype=like.dtype, device=like.device) for like in (x, w1))
    return (
        dx,
        dw1,
        x.new_empty(0) if w2 is None else torch.empty_like(dw1),
        dx.new_empty(0 if gain is None else 2, x.shape[2], dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [value if isinstance(value, Tensor) else None for value in inputs]
    ctx.numbers = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


@where_asked
def _differentiate(ctx: Any, dy: Tensor, *unused: None) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    tensors, saved = kept[: len(ctx.numbers)], kept[len(ctx.numbers) :]
    inputs = [number if tensor is None else tensor for tensor, number in zip(tensors, ctx.numbers, strict=True)]
    dx, dw1, dw2, dnorm = _run_backward(dy, *saved, *inputs)
    w2, gain = inputs[2], inputs[5]
    of_norm = (None, None) if gain is None else dnorm.to(gain.dtype).unbind()
    return dx, dw1, None if w2 is None else dw2, None, None, *of_norm, *[None] * 4


short_hyper_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(short_hyper_mix_backward, _short_hyper_mix_backward)
run = quick(short_hyper_mix, _short_hyper_mix, _keep, _differentiate)
