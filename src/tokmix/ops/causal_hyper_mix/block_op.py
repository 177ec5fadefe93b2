"""Block-causal HyperMixing as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tokmix.ops.causal_hyper_mix.op import by_token, empty_gradients, empty_states
from tokmix.ops.fast_call import Gradient, Gradients, KernelOp


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


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    return by_token(given.values), *empty_states(given.w_in, given.values, given.log_decay, given.block)


def _empty_backward(d: Gradient, saved: Saved, given: Inputs) -> tuple[Tensor, ...]:
    return empty_gradients(*given[:4], given.scale)


def _gradients(dy: Tensor, saved: Saved, given: Inputs) -> Gradients:
    dw_in, dw_out, dvalues, dlog, dscale = backward.entry(dy, *saved, *given)(dy, *saved, *given)
    return dw_in, dw_out, dvalues, None if given.log_decay is None else dlog, None, dscale, None


forward = KernelOp[tuple[Tensor, ...]](
    "tokmix::block_hyper_mix", "tokmix.ops.causal_hyper_mix.block_launch:forward", [Inputs], 3, _empty
)  # fmt: skip
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::block_hyper_mix_backward", "tokmix.ops.causal_hyper_mix.block_launch:backward", [Gradient, Saved, Inputs], 5, _empty_backward
)
forward.differentiate(_gradients, Inputs, Saved)
