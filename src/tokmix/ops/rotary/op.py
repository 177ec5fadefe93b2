"""Turning pairs of channels as a custom op. Importing this needs torch alone; the kernel is loaded when the op first runs."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, on_its_device


@torch.library.custom_op("tokmix::rotary", mutates_args=())
@on_its_device
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from tokmix.ops.rotary.kernels import pairs

    return pairs.turned(x, cos, sin)


def _like(x: Tensor) -> Tensor:
    """An empty tensor with tokens as the outer dimension in memory, like projections."""
    B, H, L, E = x.shape
    return torch.empty(B, L, H, E, dtype=x.dtype, device=x.device).transpose(1, 2)


rotary.register_fake(lambda x, cos, sin: _like(x))


@torch.library.custom_op("tokmix::rotary_backward", mutates_args=())
@on_its_device
def rotary_backward(dy: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from tokmix.ops.rotary.kernels import pairs

    return pairs.turned_back(dy, cos, sin)


rotary_backward.register_fake(lambda dy, cos, sin: _like(dy))


def _keep(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _gradients(ctx: Context, dy: Tensor) -> Gradients:
    cos, sin = ctx.saved_tensors
    dy = dy if dy.stride(3) == 1 else dy.contiguous()
    return backward.entry(dy, cos, sin)(dy, cos, sin), None, None


forward = KernelOp[Tensor](rotary, "tokmix.ops.rotary.kernels.pairs:turned", _keep, _gradients)
backward = KernelOp[Tensor](rotary_backward, "tokmix.ops.rotary.kernels.pairs:turned_back")
