"""The causal scan as custom ops: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import on_its_device

CHUNK = 64  # as in `launch`, which cannot be imported without triton
_GIVEN = "Tensor w_in, Tensor w_out, Tensor values, Tensor? log_decay, Tensor? real, Tensor scale, Tensor hidden"
_SAVED = "Tensor last, Tensor starts, Tensor kept"


def by_token(like: Tensor) -> Tensor:
    B, H, L, e = like.shape
    return like.new_empty(B, L, H, e).transpose(1, 2)


# ---------------------------------------------------------------- the scan
@torch.library.custom_op("tokmix::causal_hyper_mix", mutates_args=(), schema=f"({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)")
@on_its_device
def causal_hyper_mix(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.forward(*given)


@causal_hyper_mix.register_fake
def _(w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Any, real: Any, scale: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    B, H, L, k = w_in.shape
    chunks = (L + CHUNK - 1) // CHUNK
    new = lambda *shape: hidden.new_empty(shape)
    several = chunks > 1
    starts = new(B, H, chunks, k, values.shape[3]) if several else new(0)
    return by_token(values), new(*hidden.shape), starts, new(B, H, chunks) if several and log_decay is not None else new(0)


@torch.library.custom_op(
    "tokmix::causal_hyper_mix_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor dlast, {_GIVEN}, {_SAVED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
@on_its_device
def causal_hyper_mix_backward(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.backward(*given)


@causal_hyper_mix_backward.register_fake
def _(dy: Tensor, dlast: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Any, *rest: Any) -> tuple[Tensor, ...]:
    _, scale, hidden = rest[:3]
    new = lambda shape, like: like.new_empty(shape)
    dlog = new(scale.shape if log_decay is not None else (0,), hidden)
    return new(w_in.shape, w_in), new(w_out.shape, w_out), by_token(values), dlog, new(scale.shape, scale), new(hidden.shape, hidden)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, dy: Tensor, dlast: Tensor, *unused: Any) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    dw_in, dw_out, dvalues, dlog, dscale, dhidden = causal_hyper_mix_backward(dy, dlast, *kept)
    return dw_in, dw_out, dvalues, None if kept[3] is None else dlog, None, dscale, dhidden


causal_hyper_mix.register_autograd(_differentiate, setup_context=_keep)


# ---------------------------------------------------------------- the counts
@torch.library.custom_op("tokmix::decayed_counts", mutates_args=(), schema="(Tensor log_decay, Tensor? real, Tensor first) -> Tensor")
@on_its_device
def decayed_counts(log_decay: Tensor, real: Tensor | None, first: Tensor) -> Tensor:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.counts(log_decay, real, first)


@decayed_counts.register_fake
def _(log_decay: Tensor, real: Tensor | None, first: Tensor) -> Tensor:
    return log_decay.new_empty(log_decay.shape)


@torch.library.custom_op(
    "tokmix::decayed_counts_backward",
    mutates_args=(),
    schema="(Tensor d, Tensor log_decay, Tensor first, Tensor counts) -> (Tensor, Tensor)",
)
@on_its_device
def decayed_counts_backward(d: Tensor, log_decay: Tensor, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.counts_backward(d, log_decay, first, counts)


@decayed_counts_backward.register_fake
def _(d: Tensor, log_decay: Tensor, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    return log_decay.new_empty(log_decay.shape), first.new_empty(first.shape)


def _keep_counts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    log_decay, _, first = inputs
    ctx.save_for_backward(log_decay, first, output)


def _differentiate_counts(ctx: Any, d: Tensor) -> tuple[Any, ...]:
    dlog, dfirst = decayed_counts_backward(d, *ctx.saved_tensors)
    return dlog, None, dfirst


decayed_counts.register_autograd(_differentiate_counts, setup_context=_keep_counts)
