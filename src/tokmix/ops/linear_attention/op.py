"""Linear attention that reads both ways, as a custom op without a gradient. Importing this needs torch alone; the kernel is loaded when the
op first runs."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.fast_call import KernelOp, on_its_device


@torch.library.custom_op("tokmix::linear_attention", mutates_args=())
@on_its_device
def linear_attention(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
    from tokmix.ops.linear_attention.kernels import both_ways

    return both_ways.forward(q, k, v, real)


@linear_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
    B, H, L, E = q.shape
    return torch.empty(B, L, H, E, dtype=v.dtype, device=v.device).transpose(1, 2)


forward = KernelOp[Tensor](linear_attention, "tokmix.ops.linear_attention.kernels.both_ways:forward")
