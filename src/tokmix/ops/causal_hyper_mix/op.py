"""The causal scan as custom ops: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, on_its_device

CHUNK = 64  # the same as in `launch`, which needs triton


class Kept(NamedTuple):
    """For the backward pass of the scan: its inputs, the last state, and of several chunks the state before each and how much of it
    each keeps."""

    w_in: Tensor
    w_out: Tensor
    values: Tensor
    log_decay: Tensor | None
    real: Tensor | None
    scale: Tensor
    hidden: Tensor
    last: Tensor  # [B, H, k, e]
    starts: Tensor  # [B, H, chunks, k, e]
    kept: Tensor  # [B, H, chunks]


def by_token(like: Tensor) -> Tensor:
    B, H, L, e = like.shape
    return like.new_empty(B, L, H, e).transpose(1, 2)


# ---------------------------------------------------------------- the scan
@torch.library.custom_op("tokmix::causal_hyper_mix", mutates_args=())
@on_its_device
def causal_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.forward(w_in, w_out, values, log_decay, real, scale, hidden)


@causal_hyper_mix.register_fake
def _(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, H, L, k = w_in.shape
    chunks = (L + CHUNK - 1) // CHUNK
    new = lambda *shape: hidden.new_empty(shape)
    several = chunks > 1
    starts = new(B, H, chunks, k, values.shape[3]) if several else new(0)
    return by_token(values), new(*hidden.shape), starts, new(B, H, chunks) if several and log_decay is not None else new(0)


@torch.library.custom_op("tokmix::causal_hyper_mix_backward", mutates_args=())
@on_its_device
def causal_hyper_mix_backward(
    dy: Tensor, dlast: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor,
    hidden: Tensor, last: Tensor, starts: Tensor, kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.causal_hyper_mix import launch

    return launch.backward(dy, dlast, w_in, w_out, values, log_decay, real, scale, hidden, last, starts, kept)


@causal_hyper_mix_backward.register_fake
def _(
    dy: Tensor, dlast: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor,
    hidden: Tensor, last: Tensor, starts: Tensor, kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    new = lambda shape, like: like.new_empty(shape)
    dlog = new(scale.shape if log_decay is not None else (0,), hidden)
    return new(w_in.shape, w_in), new(w_out.shape, w_out), by_token(values), dlog, new(scale.shape, scale), new(hidden.shape, hidden)


def _keep(ctx: Context, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])
    ctx.mark_non_differentiable(*output[2:])


def _gradients(ctx: Context, dy: Tensor, dlast: Tensor, *unused: Tensor) -> Gradients:
    kept = Kept(*ctx.saved_tensors)
    dw_in, dw_out, dvalues, dlog, dscale, dhidden = backward.entry(dy, dlast, *kept)(dy, dlast, *kept)
    return dw_in, dw_out, dvalues, None if kept.log_decay is None else dlog, None, dscale, dhidden


forward = KernelOp[tuple[Tensor, ...]](causal_hyper_mix, "tokmix.ops.causal_hyper_mix.launch:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](causal_hyper_mix_backward, "tokmix.ops.causal_hyper_mix.launch:backward")


# ---------------------------------------------------------------- the counts
@torch.library.custom_op("tokmix::decayed_counts", mutates_args=())
@on_its_device
def decayed_counts(log_decay: Tensor, real: Tensor | None, first: Tensor) -> Tensor:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.counts(log_decay, real, first)


@decayed_counts.register_fake
def _(log_decay: Tensor, real: Tensor | None, first: Tensor) -> Tensor:
    return log_decay.new_empty(log_decay.shape)


@torch.library.custom_op("tokmix::decayed_counts_backward", mutates_args=())
@on_its_device
def decayed_counts_backward(d: Tensor, log_decay: Tensor, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    from tokmix.ops.causal_hyper_mix import launch

    return launch.counts_backward(d, log_decay, first, counts)


@decayed_counts_backward.register_fake
def _(d: Tensor, log_decay: Tensor, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    return log_decay.new_empty(log_decay.shape), first.new_empty(first.shape)


def _keep_counts(ctx: Context, inputs: tuple[Tensor, Tensor | None, Tensor], output: Tensor) -> None:
    log_decay, _, first = inputs
    ctx.save_for_backward(log_decay, first, output)


def _count_gradients(ctx: Context, d: Tensor) -> Gradients:
    log_decay, first, counts = ctx.saved_tensors
    dlog, dfirst = counts_backward.entry(d, log_decay, first, counts)(d, log_decay, first, counts)
    return dlog, None, dfirst


counts_forward = KernelOp[Tensor](decayed_counts, "tokmix.ops.causal_hyper_mix.launch:counts", _keep_counts, _count_gradients)
counts_backward = KernelOp[tuple[Tensor, ...]](decayed_counts_backward, "tokmix.ops.causal_hyper_mix.launch:counts_backward")
