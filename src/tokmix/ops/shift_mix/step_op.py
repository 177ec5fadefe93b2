"""The decoding step of shift mixing as a custom op that changes its ring and position: see `library`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import direct, on_its_device
from tokmix.ops.shift_mix.op import like


def _result(x: Tensor, ring: Tensor, weights: list[Tensor], gate: Tensor | None) -> torch.dtype:
    """What torch would promote them to."""
    dtype = torch.promote_types(x.dtype, ring.dtype)
    for more in (*weights, *([] if gate is None else [gate])):
        dtype = torch.promote_types(dtype, more.dtype)
    return dtype


@on_its_device
def _shift_step(
    x: Tensor, ring: Tensor, position: Tensor, new: Tensor | None, weights: list[Tensor], gate: Tensor | None, gate_bias: Tensor | None,
    gain: Tensor | None, bias: Tensor | None, eps: float, advance: bool,
) -> Tensor:  # fmt: skip
    from tokmix.ops.shift_mix.kernels import step as kernels

    dtype = _result(x, ring, weights, gate)
    return kernels.run(x, ring, position, new, weights, gate, gate_bias, gain, bias, eps, advance, dtype=dtype)


shift_step = torch.library.custom_op(
    "tokmix::shift_step",
    _shift_step,
    mutates_args=("ring", "position"),
    schema="(Tensor x, Tensor(a!) ring, Tensor(b!) position, Tensor? new, Tensor[] weights, Tensor? gate, Tensor? gate_bias, "
    "Tensor? gain, Tensor? bias, float eps, bool advance) -> Tensor",
)


@shift_step.register_fake
def _(x: Tensor, ring: Tensor, position: Tensor, new: Any, weights: list[Tensor], gate: Any, *rest: Any) -> Tensor:
    return like(x, _result(x, ring, weights, gate))


run = direct(shift_step, _shift_step)
