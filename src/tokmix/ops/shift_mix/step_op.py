"""The decoding step of shift mixing as a custom op that changes its ring and position. It has no gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.fast_call import KernelOp, on_its_device
from tokmix.ops.shift_mix.op import like


def result_dtype(x: Tensor, ring: Tensor, weights: list[Tensor], gate: Tensor | None) -> torch.dtype:
    """The dtype that torch would promote these tensors to."""
    dtype = torch.promote_types(x.dtype, ring.dtype)
    for more in (*weights, *([] if gate is None else [gate])):
        dtype = torch.promote_types(dtype, more.dtype)
    return dtype


@torch.library.custom_op("tokmix::shift_step", mutates_args=("ring", "position"))
@on_its_device
def shift_step(
    x: Tensor, ring: Tensor, position: Tensor, new: Tensor | None, weights: list[Tensor], gate: Tensor | None, gate_bias: Tensor | None,
    gain: Tensor | None, bias: Tensor | None, eps: float, advance: bool,
) -> Tensor:  # fmt: skip
    from tokmix.ops.shift_mix.kernels import step

    return step.run(x, ring, position, new, weights, gate, gate_bias, gain, bias, eps, advance)


@shift_step.register_fake
def _(
    x: Tensor, ring: Tensor, position: Tensor, new: Tensor | None, weights: list[Tensor], gate: Tensor | None, gate_bias: Tensor | None,
    gain: Tensor | None, bias: Tensor | None, eps: float, advance: bool,
) -> Tensor:  # fmt: skip
    return like(x, result_dtype(x, ring, weights, gate))


forward = KernelOp[Tensor](shift_step, "tokmix.ops.shift_mix.kernels.step:run")
