"""Block-causal HyperMixing as a custom op: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix.op import by_token
from tokmix.ops.fast_call import direct, on_its_device, quick, where_asked

_GIVEN = "Tensor w_in, Tensor w_out, Tensor values, Tensor? log_decay, Tensor? real, Tensor scale"


@on_its_device
def _block_hyper_mix(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.causal_hyper_mix import block_launch

    return block_launch.forward(*given)


block_hyper_mix = torch.library.custom_op(
    "tokmix::block_hyper_mix", _block_hyper_mix, mutates_args=(), schema=f"({_GIVEN}, int block) -> (Tensor, Tensor, Tensor)"
)


@block_hyper_mix.register_fake
def _(w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Any, real: Any, scale: Tensor, block: int) -> tuple[Tensor, ...]:
    B, H, L, k = w_in.shape
    chunks = (L + block - 1) // block
    new = lambda *shape: scale.new_empty(shape, dtype=torch.float32)
    starts = new(B, H, chunks, k, values.shape[3]) if chunks > 1 else new(0)
    return by_token(values), starts, new(B, H, chunks) if chunks > 1 and log_decay is not None else new(0)


@on_its_device
def _block_hyper_mix_backward(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.causal_hyper_mix import block_launch

    return block_launch.backward(*given)


block_hyper_mix_backward = torch.library.custom_op(
    "tokmix::block_hyper_mix_backward",
    _block_hyper_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, {_GIVEN}, Tensor starts, Tensor kept, int block) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@block_hyper_mix_backward.register_fake
def _(dy: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Any, real: Any, scale: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    new = lambda shape, like: like.new_empty(shape)
    dlog = new(scale.shape if log_decay is not None else (0,), scale)
    return new(w_in.shape, w_in), new(w_out.shape, w_out), by_token(values), dlog, new(scale.shape, scale)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *given, ctx.block = inputs
    ctx.save_for_backward(*given, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


@where_asked
def _differentiate(ctx: Any, dy: Tensor, *unused: None) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    dw_in, dw_out, dvalues, dlog, dscale = _run_backward(dy, *kept, ctx.block)
    return dw_in, dw_out, dvalues, None if kept[3] is None else dlog, None, dscale, None


block_hyper_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(block_hyper_mix_backward, _block_hyper_mix_backward)
run = quick(block_hyper_mix, _block_hyper_mix, _keep, _differentiate)
