"""HyperMLP's kernels as custom ops, which torch.compile, autograd and operation counters treat as single operations.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.fast_call import Context, Gradients, KernelOp, on_its_device


class Kept(NamedTuple):
    """For the backward pass: the outputs (o, and u, y, 1 / ‖h‖ in float32), then the inputs."""

    o: Tensor
    u: Tensor
    y: Tensor
    shrink: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    down1: Tensor | None
    up1: Tensor | None
    diagonal1: Tensor | None
    control1: Tensor | None
    down2: Tensor | None
    up2: Tensor | None
    diagonal2: Tensor | None
    control2: Tensor | None


def _by_token(like: Tensor) -> Tensor:
    B, H, T, n = like.shape
    return like.new_empty(B, T, H, n).transpose(1, 2)


@torch.library.custom_op("tokmix::hyper_mlp", mutates_args=())
@on_its_device
def hyper_mlp(
    q: Tensor, k: Tensor, v: Tensor,
    down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """q [B, Hq, T, e], k, v [B, H, T, f]; banks cut to T -> o, and what the backward pass needs: u, y, 1 / ‖h‖ in float32."""
    from tokmix.ops.hyper_mlp import launch

    return launch.forward(q, k, v, down1, up1, diagonal1, control1, down2, up2, diagonal2, control2, lag)


@hyper_mlp.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor,
    down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, H, T, _ = v.shape
    new = lambda *shape: v.new_empty(shape, dtype=torch.float32)
    u, y = (new(0) if control is None else new(*control.shape) for control in (control1, control2))
    return _by_token(v), u, y, new(B, H, T)


@torch.library.custom_op("tokmix::hyper_mlp_backward", mutates_args=())
@on_its_device
def hyper_mlp_backward(
    do: Tensor, o: Tensor, u: Tensor, y: Tensor, shrink: Tensor, q: Tensor, k: Tensor, v: Tensor,
    down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from tokmix.ops.hyper_mlp import launch_backward

    return launch_backward.backward(  # type: ignore[return-value]
        do, o, u, y, shrink, q, k, v, down1, up1, diagonal1, control1, down2, up2, diagonal2, control2, lag
    )


@hyper_mlp_backward.register_fake
def _(
    do: Tensor, o: Tensor, u: Tensor, y: Tensor, shrink: Tensor, q: Tensor, k: Tensor, v: Tensor,
    down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    found = [_by_token(q), _by_token(k), _by_token(v)]
    for bank in ((down1, up1, diagonal1, control1), (down2, up2, diagonal2, control2)):
        found += [v.new_empty(0 if x is None else x.shape, dtype=torch.float32 if x is None else x.dtype) for x in bank]
    return tuple(found)


def _keep(ctx: Context, inputs: tuple[object, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    *tensors, lag = inputs
    ctx.numbers = (lag,)
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Context, do: Tensor, *unused: Tensor) -> Gradients:
    kept = Kept(*ctx.saved_tensors)
    found = backward.entry(do, *kept)(do, *kept, *ctx.numbers)
    return *(None if x is None else dx for x, dx in zip(kept[Kept._fields.index("q") :], found, strict=True)), None


forward = KernelOp[tuple[Tensor, ...]](hyper_mlp, "tokmix.ops.hyper_mlp.launch:forward", _keep, _gradients)
backward = KernelOp[tuple[Tensor, ...]](hyper_mlp_backward, "tokmix.ops.hyper_mlp.launch_backward:backward")
