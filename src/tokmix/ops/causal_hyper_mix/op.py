"""The causal scan as custom ops: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradients, KernelOp
from tokmix.ops.sizes import cdiv

CHUNK = 64  # the same as in `launch`, which needs triton


# ---------------------------------------------------------------- the scan
class Inputs(NamedTuple):
    """The op's arguments, in order."""

    w_in: Tensor
    w_out: Tensor
    values: Tensor
    log_decay: Tensor | None
    real: Tensor | None
    scale: Tensor
    hidden: Tensor


class Saved(NamedTuple):
    """For the backward pass: the last state and, of several chunks, the state before each and how much of it each keeps."""

    last: Tensor  # [B, H, k, e]
    starts: Tensor  # [B, H, chunks, k, e]
    kept: Tensor  # [B, H, chunks]


class TwoGradients(NamedTuple):
    dy: Tensor
    dlast: Tensor


def by_token(like: Tensor) -> Tensor:
    B, H, L, e = like.shape
    return like.new_empty(B, L, H, e).transpose(1, 2)


def empty_states(w_in: Tensor, values: Tensor, log_decay: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Of several chunks the state before each, and with decay how much of it each keeps; in float32."""
    B, H, L, k = w_in.shape
    chunks = cdiv(L, chunk)
    new = lambda *shape: w_in.new_empty(shape, dtype=torch.float32)
    starts = new(B, H, chunks, k, values.shape[3]) if chunks > 1 else new(0)
    return starts, new(B, H, chunks) if chunks > 1 and log_decay is not None else new(0)


def empty_gradients(w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, scale: Tensor) -> tuple[Tensor, ...]:
    """Like w_in, w_out, values, log_decay (empty without one) and scale."""
    dlog = scale.new_empty(scale.shape if log_decay is not None else (0,), dtype=torch.float32)
    return w_in.new_empty(w_in.shape), w_out.new_empty(w_out.shape), by_token(values), dlog, scale.new_empty(scale.shape)


def _empty(given: Inputs) -> tuple[Tensor, ...]:
    last = given.hidden.new_empty(given.hidden.shape)
    return by_token(given.values), last, *empty_states(given.w_in, given.values, given.log_decay, CHUNK)


def _empty_backward(d: TwoGradients, given: Inputs, saved: Saved) -> tuple[Tensor, ...]:
    return *empty_gradients(*given[:4], given.scale), given.hidden.new_empty(given.hidden.shape)


def _gradients(dy: Tensor, dlast: Tensor, saved: Saved, given: Inputs) -> Gradients:
    dw_in, dw_out, dvalues, dlog, dscale, dhidden = backward.entry(dy, dlast, *given, *saved)(dy, dlast, *given, *saved)
    return dw_in, dw_out, dvalues, None if given.log_decay is None else dlog, None, dscale, dhidden


forward = KernelOp[tuple[Tensor, ...]](
    "tokmix::causal_hyper_mix", "tokmix.ops.causal_hyper_mix.launch:forward", [Inputs], 4, _empty
)  # fmt: skip
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::causal_hyper_mix_backward", "tokmix.ops.causal_hyper_mix.launch:backward", [TwoGradients, Inputs, Saved], 6, _empty_backward
)
forward.differentiate(_gradients, Inputs, Saved, smooth=2)


# ---------------------------------------------------------------- the counts
class CountInputs(NamedTuple):
    log_decay: Tensor
    real: Tensor | None
    first: Tensor


class Counts(NamedTuple):
    counts: Tensor


class CountsRead(NamedTuple):
    """What the backward pass reads."""

    d: Tensor
    log_decay: Tensor
    first: Tensor
    counts: Tensor


def _empty_counts_backward(given: CountsRead) -> tuple[Tensor, Tensor]:
    return given.log_decay.new_empty(given.log_decay.shape), given.first.new_empty(given.first.shape)


def _count_gradients(d: Tensor, saved: Counts, given: CountInputs) -> Gradients:
    read = CountsRead(d, given.log_decay, given.first, saved.counts)
    dlog, dfirst = counts_backward.entry(*read)(*read)
    return dlog, None, dfirst


counts_forward = KernelOp[Tensor](
    "tokmix::decayed_counts", "tokmix.ops.causal_hyper_mix.launch:counts", [CountInputs], 1,
    lambda given: given.log_decay.new_empty(given.log_decay.shape),
)  # fmt: skip
counts_backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::decayed_counts_backward", "tokmix.ops.causal_hyper_mix.launch:counts_backward", [CountsRead], 2, _empty_counts_backward
)
counts_forward.differentiate(_count_gradients, CountInputs, Counts, unread=["real"])
