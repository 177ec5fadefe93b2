"""Shift mixing with matrices and with a gate as custom ops: see `op`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Gradient, Gradients, KernelOp, Nothing
from tokmix.ops.shift_mix.op import Inputs, like


# ---------------------------------------------------------------- matrices: the inputs of `shift_mix`, with [H, e, e] weights
def _empty_backward(d: Gradient, given: Inputs) -> tuple[Tensor, Tensor]:
    heads, e, _ = given.a.shape
    return like(given.x), given.x.new_empty(heads, e, (2 if given.c is None else 3) * e)


def _gradients(dy: Tensor, saved: Nothing, given: Inputs) -> Gradients:
    dx, joined = backward.entry(dy, *given)(dy, *given)
    da, db, dc = (*joined.chunk(2, dim=2), None) if given.c is None else joined.chunk(3, dim=2)
    return dx, da, db, dc, None, None, None


forward = KernelOp[Tensor](
    "tokmix::matrix_shift_mix", "tokmix.ops.shift_mix.kernels.matrix:forward", [Inputs], 1, lambda given: like(given.x)
)
backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::matrix_shift_mix_backward", "tokmix.ops.shift_mix.kernels.matrix:backward", [Gradient, Inputs], 2, _empty_backward
)
forward.differentiate(_gradients, Inputs, Nothing)


# ---------------------------------------------------------------- gate
class GateInputs(NamedTuple):
    """Arguments of `gate_shift_mix`, in order."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    both_ways: bool
    shift: int
    table: Tensor | None
    places: Tensor | None


class GateSaved(NamedTuple):
    p: Tensor  # [H, B * T, e], W x


def _gate_empty(given: GateInputs) -> tuple[Tensor, Tensor]:
    x, (heads, e) = given.x, given.bias.shape
    return like(x), x.new_empty(heads, x.shape[0] * x.shape[1], e)


def _gate_empty_backward(d: Gradient, saved: GateSaved, given: GateInputs) -> tuple[Tensor, Tensor, Tensor]:
    return like(given.x), torch.empty_like(given.weight), given.bias.new_empty(given.bias.shape, dtype=torch.float32)


def _gate_gradients(dy: Tensor, saved: GateSaved, given: GateInputs) -> Gradients:
    dx, dweight, dbias = gate_backward.entry(dy, *saved, *given)(dy, *saved, *given)
    return dx, dweight, dbias.to(given.bias.dtype), None, None, None, None


gate_forward = KernelOp[tuple[Tensor, ...]](
    "tokmix::gate_shift_mix", "tokmix.ops.shift_mix.kernels.gated:forward", [GateInputs], 2, _gate_empty
)
gate_backward = KernelOp[tuple[Tensor, ...]](
    "tokmix::gate_shift_mix_backward", "tokmix.ops.shift_mix.kernels.gated:backward",
    [Gradient, GateSaved, GateInputs], 3, _gate_empty_backward,
)  # fmt: skip
gate_forward.differentiate(_gate_gradients, GateInputs, GateSaved)
