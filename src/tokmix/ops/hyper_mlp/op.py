"""HyperMLP's kernels as custom ops: torch.compile, autograd and operation counters take them whole.

Importing this needs torch alone; the kernels are loaded when an op first runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokmix.ops.fast_call import on_its_device

_BANK = "Tensor? down{0}, Tensor? up{0}, Tensor? diagonal{0}, Tensor? control{0}"
_GIVEN = f"Tensor q, Tensor k, Tensor v, {_BANK.format(1)}, {_BANK.format(2)}, bool lag"
_GRADIENTS = ", ".join(["Tensor"] * 11)


def _by_token(like: Tensor) -> Tensor:
    B, H, T, n = like.shape
    return like.new_empty(B, T, H, n).transpose(1, 2)


@torch.library.custom_op("tokmix::hyper_mlp", mutates_args=(), schema=f"({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor)")
@on_its_device
def hyper_mlp(*given: Any) -> tuple[Tensor, ...]:
    """q [B, Hq, T, e], k, v [B, H, T, f]; banks cut to T -> o, and what the backward pass needs: u, y, 1 / ‖h‖ in float32."""
    from tokmix.ops.hyper_mlp import launch

    return launch.forward(*given)


@hyper_mlp.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    B, H, T, _ = v.shape
    new = lambda *shape: v.new_empty(shape, dtype=torch.float32)
    sums = [new(0) if control is None else new(*control.shape) for control in (rest[3], rest[7])]
    return _by_token(v), *sums, new(B, H, T)


@torch.library.custom_op(
    "tokmix::hyper_mlp_backward",
    mutates_args=(),
    schema=f"(Tensor do, Tensor o, Tensor u, Tensor y, Tensor shrink, {_GIVEN}) -> ({_GRADIENTS})",
)
@on_its_device
def hyper_mlp_backward(*given: Any) -> tuple[Tensor, ...]:
    from tokmix.ops.hyper_mlp import launch_backward

    return launch_backward.backward(*given)


@hyper_mlp_backward.register_fake
def _(do: Tensor, o: Tensor, u: Tensor, y: Tensor, shrink: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    found = [_by_token(q), _by_token(k), _by_token(v)]
    for bank in (rest[:4], rest[4:8]):
        found += [v.new_empty(0 if x is None else x.shape, dtype=torch.float32 if x is None else x.dtype) for x in bank]
    return tuple(found)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:-1])
    ctx.lag = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, do: Tensor, *unused: Any) -> tuple[Any, ...]:
    kept = ctx.saved_tensors  # asked for once: checkpointing allows no more
    found = hyper_mlp_backward(do, *kept, ctx.lag)
    return *(None if x is None else dx for x, dx in zip(kept[4:], found, strict=True)), None


hyper_mlp.register_autograd(_differentiate, setup_context=_keep)
