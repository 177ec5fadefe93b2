"""The short convolution as a custom op: torch.compile, autograd and operation counters take the kernels whole.

Importing this needs torch alone; the kernels are loaded when the op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device, quick


@on_its_device
def _short_conv(x: Tensor, weight: Tensor) -> Tensor:
    from tokmix.ops.short_conv.kernels import depthwise as kernels

    return kernels.forward(x, weight)


short_conv = torch.library.custom_op("tokmix::short_conv", _short_conv, mutates_args=(), schema="(Tensor x, Tensor weight) -> Tensor")


@short_conv.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@on_its_device
def _short_conv_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    from tokmix.ops.short_conv.kernels import depthwise as kernels

    return kernels.backward(dy, x, weight)


short_conv_backward = torch.library.custom_op(
    "tokmix::short_conv_backward", _short_conv_backward, mutates_args=(), schema="(Tensor dy, Tensor x, Tensor weight) -> (Tensor, Tensor)"
)


@short_conv_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    D, K = weight.shape
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(K, D, dtype=torch.float32).mT


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    dx, dweight = _run_backward(dy, x, weight)
    return dx, dweight.to(weight.dtype)


short_conv.register_autograd(_differentiate, setup_context=_keep)
_run_backward = direct(short_conv_backward, _short_conv_backward)
run = quick(short_conv, _short_conv, _keep, _differentiate)
