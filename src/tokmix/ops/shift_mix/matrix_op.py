"""Shift mixing with matrices as a custom op: see `library`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick
from tokmix.ops.shift_mix.op import WHERE, like


@on_its_device
def _matrix_shift_mix(x: Tensor, weights: list[Tensor], *where: Any) -> Tensor:
    from tokmix.ops.shift_mix.kernels import matrix as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.forward(x, weights, tiles.Where(*where))


matrix_shift_mix = torch.library.custom_op(
    "tokmix::matrix_shift_mix", _matrix_shift_mix, mutates_args=(), schema=f"(Tensor x, Tensor[] weights, {WHERE}) -> Tensor"
)


@matrix_shift_mix.register_fake
def _(x: Tensor, weights: list[Tensor], *where: Any) -> Tensor:
    return like(x, x.dtype)


@on_its_device
def _matrix_shift_mix_backward(dy: Tensor, x: Tensor, weights: list[Tensor], *where: Any) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import matrix as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.backward(dy, x, weights, tiles.Where(*where))


matrix_shift_mix_backward = torch.library.custom_op(
    "tokmix::matrix_shift_mix_backward",
    _matrix_shift_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, Tensor x, Tensor[] weights, {WHERE}) -> (Tensor, Tensor)",
)


@matrix_shift_mix_backward.register_fake
def _(dy: Tensor, x: Tensor, weights: list[Tensor], *where: Any) -> tuple[Tensor, Tensor]:
    heads, e, _ = weights[0].shape
    return like(x, x.dtype), x.new_empty(heads, e, len(weights) * e)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, ctx.shift, table, places = inputs
    ctx.save_for_backward(x, table, places, *weights)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, table, places, *weights = ctx.saved_tensors
    dx, joined = _run_backward(dy, x, weights, ctx.shift, table, places)
    return dx, list(joined.chunk(len(weights), dim=2)), None, None, None


matrix_shift_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(matrix_shift_mix_backward, _matrix_shift_mix_backward)
run = quick(matrix_shift_mix, _matrix_shift_mix, _keep, _differentiate, listed=1)
