"""Shift mixing with matrices and with a gate as custom ops: see `op`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, no_gradients, on_its_device, restore, save
from tokmix.ops.shift_mix.op import Inputs, Nothing, like


# ---------------------------------------------------------------- matrices: the inputs of `shift_mix`, with [H, e, e] weights
@torch.library.custom_op("tokmix::matrix_shift_mix", mutates_args=())
@on_its_device
def matrix_shift_mix(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    from tokmix.ops.shift_mix.kernels import matrix

    return matrix.forward(x, a, b, c, shift, table, places)


@matrix_shift_mix.register_fake
def _(x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None) -> Tensor:
    return like(x, x.dtype)


@torch.library.custom_op("tokmix::matrix_shift_mix_backward", mutates_args=())
@on_its_device
def matrix_shift_mix_backward(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import matrix

    return matrix.backward(dy, x, a, b, c, shift, table, places)


@matrix_shift_mix_backward.register_fake
def _(
    dy: Tensor, x: Tensor, a: Tensor, b: Tensor, c: Tensor | None, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    heads, e, _ = a.shape
    return like(x, x.dtype), x.new_empty(heads, e, (2 if c is None else 3) * e)


def _keep(ctx: Context, inputs: tuple[object, ...], output: Tensor) -> None:
    save(ctx, inputs)


def _gradients(ctx: Context, dy: Tensor) -> Gradients:
    given, _ = restore(ctx, Inputs, Nothing)
    dx, joined = backward.entry(dy, *given)(dy, *given)
    da, db, dc = (*joined.chunk(2, dim=2), None) if given.c is None else joined.chunk(3, dim=2)
    return dx, da, db, dc, None, None, None


forward = KernelOp[Tensor](matrix_shift_mix, "tokmix.ops.shift_mix.kernels.matrix:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](matrix_shift_mix_backward, "tokmix.ops.shift_mix.kernels.matrix:backward")


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


@torch.library.custom_op("tokmix::gate_shift_mix", mutates_args=())
@on_its_device
def gate_shift_mix(
    x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import gated

    return gated.forward(x, weight, bias, both_ways, shift, table, places)


@gate_shift_mix.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor]:
    heads, e = bias.shape
    return like(x, x.dtype), x.new_empty(heads, x.shape[0] * x.shape[1], e)


@torch.library.custom_op("tokmix::gate_shift_mix_backward", mutates_args=())
@on_its_device
def gate_shift_mix_backward(
    dy: Tensor, p: Tensor, x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import gated

    return gated.backward(dy, p, x, weight, bias, both_ways, shift, table, places)


@gate_shift_mix_backward.register_fake
def _(
    dy: Tensor, p: Tensor, x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, shift: int, table: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return like(x, x.dtype), torch.empty_like(weight), bias.new_empty(bias.shape, dtype=torch.float32)


def _keep_gate(ctx: Context, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    save(ctx, inputs, output[1:])


def _gate_gradients(ctx: Context, dy: Tensor | None, _: None) -> Gradients:
    if dy is None:
        return no_gradients(ctx)
    given, saved = restore(ctx, GateInputs, GateSaved)
    dx, dweight, dbias = gate_backward.entry(dy, *saved, *given)(dy, *saved, *given)
    return dx, dweight, dbias.to(given.bias.dtype), None, None, None, None


gate_forward = KernelOp[tuple[Tensor, ...]](gate_shift_mix, "tokmix.ops.shift_mix.kernels.gated:forward", _keep_gate, _gate_gradients)
gate_backward = KernelOp[tuple[Tensor, ...]](gate_shift_mix_backward, "tokmix.ops.shift_mix.kernels.gated:backward")
