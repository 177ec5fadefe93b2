"""Block-causal HyperMixing as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix.op import by_token
from tokmix.ops.fast_call import Context, Gradients, KernelOp, no_gradients, on_its_device, restore, save


class Inputs(NamedTuple):
    """The op's arguments, in order."""

    w_in: Tensor
    w_out: Tensor
    values: Tensor
    log_decay: Tensor | None
    real: Tensor | None
    scale: Tensor
    block: int


class Saved(NamedTuple):
    """Saved for the backward pass; both are empty for a single block."""

    starts: Tensor  # [B, H, blocks, k, e], the state at the start of each block
    kept: Tensor  # [B, H, blocks], how much of it each block keeps; empty without decay


@torch.library.custom_op("tokmix::block_hyper_mix", mutates_args=())
@on_its_device
def block_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    from tokmix.ops.causal_hyper_mix import block_launch

    return block_launch.forward(w_in, w_out, values, log_decay, real, scale, block)


@block_hyper_mix.register_fake
def _(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    B, H, L, k = w_in.shape
    chunks = (L + block - 1) // block
    new = lambda *shape: scale.new_empty(shape, dtype=torch.float32)
    starts = new(B, H, chunks, k, values.shape[3]) if chunks > 1 else new(0)
    return by_token(values), starts, new(B, H, chunks) if chunks > 1 and log_decay is not None else new(0)


@torch.library.custom_op("tokmix::block_hyper_mix_backward", mutates_args=())
@on_its_device
def block_hyper_mix_backward(
    dy: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor,
    starts: Tensor, kept: Tensor, block: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.causal_hyper_mix import block_launch

    return block_launch.backward(dy, w_in, w_out, values, log_decay, real, scale, starts, kept, block)


@block_hyper_mix_backward.register_fake
def _(
    dy: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor,
    starts: Tensor, kept: Tensor, block: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    new = lambda shape, like: like.new_empty(shape)
    dlog = new(scale.shape if log_decay is not None else (0,), scale)
    return new(w_in.shape, w_in), new(w_out.shape, w_out), by_token(values), dlog, new(scale.shape, scale)


def _keep(ctx: Context, inputs: tuple[object, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    save(ctx, inputs, output[1:])


def _gradients(ctx: Context, dy: Tensor | None, *unused: None) -> Gradients:
    if dy is None:
        return no_gradients(ctx)
    given, saved = restore(ctx, Inputs, Saved)
    tensors = (dy, given.w_in, given.w_out, given.values, given.log_decay, given.real, given.scale, *saved)
    dw_in, dw_out, dvalues, dlog, dscale = backward.entry(*tensors)(*tensors, given.block)
    return dw_in, dw_out, dvalues, None if given.log_decay is None else dlog, None, dscale, None


forward = KernelOp[tuple[Tensor, ...]](block_hyper_mix, "tokmix.ops.causal_hyper_mix.block_launch:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](block_hyper_mix_backward, "tokmix.ops.causal_hyper_mix.block_launch:backward")
