"""Shift mixing as custom ops: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when an op first runs. `where` is always (shift, table,
places), see `tiles.Where`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick, where_asked

WHERE = "int shift, Tensor? table, Tensor? places"


def like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def _result(x: Tensor, weights: list[Tensor]) -> torch.dtype:
    """What torch would promote a product of both to."""
    return torch.promote_types(x.dtype, weights[0].dtype)


def _per_weight(channels: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Gradients per channel [n, D] -> one for each weight, [H, e] or [H, 1]."""
    heads, width = weights[0].shape
    grouped = channels.unflatten(1, (heads, -1))
    if width != grouped.shape[2]:
        grouped = grouped.sum(2, keepdim=True)
    return list(grouped.to(weights[0].dtype).unbind())


# ---------------------------------------------------------------- weighted: ab and vector
@on_its_device
def _shift_mix(x: Tensor, weights: list[Tensor], *where: Any) -> Tensor:
    from tokmix.ops.shift_mix.kernels import tiles
    from tokmix.ops.shift_mix.kernels import weighted as kernels

    return kernels.forward(x, weights, tiles.Where(*where), _result(x, weights))


shift_mix = torch.library.custom_op(
    "tokmix::shift_mix", _shift_mix, mutates_args=(), schema=f"(Tensor x, Tensor[] weights, {WHERE}) -> Tensor"
)


@shift_mix.register_fake
def _(x: Tensor, weights: list[Tensor], *where: Any) -> Tensor:
    return like(x, _result(x, weights))


@on_its_device
def _shift_mix_backward(dy: Tensor, x: Tensor, weights: list[Tensor], *where: Any) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import tiles
    from tokmix.ops.shift_mix.kernels import weighted as kernels

    return kernels.backward(dy, x, weights, tiles.Where(*where))


shift_mix_backward = torch.library.custom_op(
    "tokmix::shift_mix_backward",
    _shift_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, Tensor x, Tensor[] weights, {WHERE}) -> (Tensor, Tensor)",
)


@shift_mix_backward.register_fake
def _(dy: Tensor, x: Tensor, weights: list[Tensor], *where: Any) -> tuple[Tensor, Tensor]:
    return like(x, x.dtype), x.new_empty(len(weights), x.shape[2], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, ctx.shift, table, places = inputs
    ctx.save_for_backward(x, table, places, *weights)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, table, places, *weights = ctx.saved_tensors
    dx, channels = _run_backward(dy, x, weights, ctx.shift, table, places)
    return dx, _per_weight(channels, weights), None, None, None


shift_mix.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(shift_mix_backward, _shift_mix_backward)
run = quick(shift_mix, _shift_mix, _keep, _differentiate, listed=1)


# ---------------------------------------------------------------- LayerNorm, weighted, residual
@on_its_device
def _norm_shift_mix(x: Tensor, weights: list[Tensor], gain: Tensor, bias: Tensor, eps: float, *where: Any) -> Tensor:
    from tokmix.ops.shift_mix.kernels import norm_weighted as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.forward(x, weights, gain, bias, eps, tiles.Where(*where), _result(x, weights))


norm_shift_mix = torch.library.custom_op(
    "tokmix::norm_shift_mix",
    _norm_shift_mix,
    mutates_args=(),
    schema=f"(Tensor x, Tensor[] weights, Tensor gain, Tensor bias, float eps, {WHERE}) -> Tensor",
)


@norm_shift_mix.register_fake
def _(x: Tensor, weights: list[Tensor], gain: Tensor, bias: Tensor, eps: float, *where: Any) -> Tensor:
    return like(x, _result(x, weights))


@on_its_device
def _norm_shift_mix_backward(
    dy: Tensor, x: Tensor, weights: list[Tensor], gain: Tensor, bias: Tensor, eps: float, *where: Any
) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import norm_weighted as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.backward(dy, x, weights, gain, bias, eps, tiles.Where(*where))


norm_shift_mix_backward = torch.library.custom_op(
    "tokmix::norm_shift_mix_backward",
    _norm_shift_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, Tensor x, Tensor[] weights, Tensor gain, Tensor bias, float eps, {WHERE}) -> (Tensor, Tensor)",
)


@norm_shift_mix_backward.register_fake
def _(dy: Tensor, x: Tensor, weights: list[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
    return like(x, x.dtype), x.new_empty(2 + len(weights), x.shape[2], dtype=torch.float32)


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, gain, bias, ctx.eps, ctx.shift, table, places = inputs
    ctx.save_for_backward(x, gain, bias, table, places, *weights)


def _differentiate_norm(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, gain, bias, table, places, *weights = ctx.saved_tensors
    dx, channels = _run_norm_backward(dy, x, weights, gain, bias, ctx.eps, ctx.shift, table, places)
    if weights[0].shape[1] > 1 and gain.dtype == weights[0].dtype:
        channels = channels.to(gain.dtype)  # one cast for all
    dgain, dbias = channels[0].to(gain.dtype), channels[1].to(bias.dtype)
    return dx, _per_weight(channels[2:], weights), dgain, dbias, None, None, None, None


norm_shift_mix.register_autograd(_differentiate_norm, setup_context=_keep_norm)
_run_norm_backward = direct(norm_shift_mix_backward, _norm_shift_mix_backward)
run_norm = quick(norm_shift_mix, _norm_shift_mix, _keep_norm, _differentiate_norm, listed=1)


# ---------------------------------------------------------------- gate
@on_its_device
def _gate_shift_mix(x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, *where: Any) -> tuple[Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import gated as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.forward(x, weight, bias, tiles.Where(*where), both_ways)


gate_shift_mix = torch.library.custom_op(
    "tokmix::gate_shift_mix",
    _gate_shift_mix,
    mutates_args=(),
    schema=f"(Tensor x, Tensor weight, Tensor bias, bool both_ways, {WHERE}) -> (Tensor, Tensor)",
)


@gate_shift_mix.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, *where: Any) -> tuple[Tensor, Tensor]:
    heads, e = bias.shape
    return like(x, x.dtype), x.new_empty(heads, x.shape[0] * x.shape[1], e)


@on_its_device
def _gate_shift_mix_backward(
    dy: Tensor, x: Tensor, p: Tensor, weight: Tensor, bias: Tensor, both_ways: bool, *where: Any
) -> tuple[Tensor, Tensor, Tensor]:
    from tokmix.ops.shift_mix.kernels import gated as kernels
    from tokmix.ops.shift_mix.kernels import tiles

    return kernels.backward(dy, x, p, weight, bias, tiles.Where(*where), both_ways)


gate_shift_mix_backward = torch.library.custom_op(
    "tokmix::gate_shift_mix_backward",
    _gate_shift_mix_backward,
    mutates_args=(),
    schema=f"(Tensor dy, Tensor x, Tensor p, Tensor weight, Tensor bias, bool both_ways, {WHERE}) -> (Tensor, Tensor, Tensor)",
)


@gate_shift_mix_backward.register_fake
def _(dy: Tensor, x: Tensor, p: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return like(x, x.dtype), torch.empty_like(weight), bias.new_empty(bias.shape, dtype=torch.float32)


def _keep_gate(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, ctx.both_ways, ctx.shift, table, places = inputs
    ctx.save_for_backward(x, output[1], weight, bias, table, places)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


@where_asked
def _differentiate_gate(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
    x, p, weight, bias, table, places = ctx.saved_tensors
    dx, dweight, dbias = _run_gate_backward(dy, x, p, weight, bias, ctx.both_ways, ctx.shift, table, places)
    return dx, dweight, dbias.to(bias.dtype), None, None, None, None


gate_shift_mix.register_autograd(_differentiate_gate, setup_context=_keep_gate)
_run_gate_backward = direct(gate_shift_mix_backward, _gate_shift_mix_backward)
run_gate = quick(gate_shift_mix, _gate_shift_mix, _keep_gate, _differentiate_gate)
