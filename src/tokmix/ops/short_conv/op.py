"""The short convolution as a custom op. Importing this needs torch alone; the kernels are loaded when the op first runs."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, on_its_device


@torch.library.custom_op("tokmix::short_conv", mutates_args=())
@on_its_device
def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    from tokmix.ops.short_conv.kernels import depthwise

    return depthwise.forward(x, weight)


@short_conv.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("tokmix::short_conv_backward", mutates_args=())
@on_its_device
def short_conv_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    from tokmix.ops.short_conv.kernels import depthwise

    return depthwise.backward(dy, x, weight)


@short_conv_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    D, K = weight.shape
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(K, D, dtype=torch.float32).mT


def _keep(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Context, dy: Tensor) -> Gradients:
    x, weight = ctx.saved_tensors
    dx, dweight = backward.entry(dy, x, weight)(dy, x, weight)
    return dx, dweight.to(weight.dtype)


forward = KernelOp[Tensor](short_conv, "tokmix.ops.short_conv.kernels.depthwise:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](short_conv_backward, "tokmix.ops.short_conv.kernels.depthwise:backward")
