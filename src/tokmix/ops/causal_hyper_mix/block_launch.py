"""The kernels of block-causal HyperMixing put together; see `kernels/block_causal.py` for the data flow."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix.kernels import block_causal as kernels
from tokmix.ops.causal_hyper_mix.launch import LaunchSizes, by_token, flat, last_dim_contiguous, strides
from tokmix.ops.hyper_mix.launch import KINDS

# For heads of up to 64 channels; wider ones get twice as many.
WARPS = {"read": 8, "border": 4, "backward": 8}


def _side(plan: LaunchSizes) -> int:
    """Side of the square tile that holds k x e. With a tile of 16 x 128, sixteen warps read outside of memory (Triton 3.6, H200), most
    likely because tensor cores cannot serve that many warps with a side of 16."""
    return max(plan.kp, plan.ep)


def _warps(plan: LaunchSizes, name: str) -> int:
    return WARPS[name] * (1 if _side(plan) <= 64 else 2)


def _ending(plan: LaunchSizes, dtype: torch.dtype) -> tuple[object, ...]:
    """The last arguments of every kernel. With tf32x3, three products in a row would have more than twice torch's error."""
    precision = "ieee" if plan.precision == "tf32x3" else plan.precision
    return plan.k, plan.e, _side(plan), _side(plan), plan.chunk, KINDS[dtype], precision


def forward(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, H, L, e], and for the backward pass: the state at the start of each block and the share of it that each block keeps; both
    empty for a single block, the latter also without decay."""
    w_in, w_out, values = last_dim_contiguous(w_in), last_dim_contiguous(w_out), last_dim_contiguous(values)
    log_decay, real, scale = flat(log_decay), flat(real), scale.contiguous()
    plan = LaunchSizes(w_in, w_out, values, block)
    starts, kept = plan.empty(0), None
    if plan.chunks > 1:
        starts = plan.states()
        kept = plan.written(w_in, values, log_decay, real, starts)
        plan.join(torch.zeros(plan.B, plan.H, plan.k, plan.e, device=plan.device), starts, kept, None)
    y = by_token(values, values.dtype)
    kernels.block_read[(plan.pieces,)](
        w_in, w_out, values, log_decay, real, scale, starts, y, plan.L, plan.chunks, plan.H, *strides(w_in, w_out, values, y),
        *_ending(plan, w_in.dtype), num_warps=_warps(plan, "read"), num_stages=1,
    )  # fmt: skip
    return y, starts, plan.empty(0) if kept is None else kept


def backward(
    dy: Tensor, starts: Tensor, kept: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None,
    real: Tensor | None, scale: Tensor, block: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of w_in, w_out, values, log_decay (empty without one) and scale."""
    dy, w_in, w_out, values = last_dim_contiguous(dy), last_dim_contiguous(w_in), last_dim_contiguous(w_out), last_dim_contiguous(values)
    log_decay, real, scale = flat(log_decay), flat(real), scale.contiguous()
    plan = LaunchSizes(w_in, w_out, values, block)
    B, H, L, k, e = plan.B, plan.H, plan.L, plan.k, plan.e
    several, ending = plan.chunks > 1, _ending(plan, w_in.dtype)
    sizes = (L, plan.chunks, H)
    nothing = torch.zeros(2, B, H, k, e, device=plan.device)  # gradients of the state after the last block, and of the one before the first
    ends, dborder = nothing[0, :, :, None].contiguous(), plan.empty(B, H, plan.chunks)
    if several:
        ends = plan.states()
        kernels.block_border[(B * H * (plan.chunks - 1),)](
            w_out, dy, log_decay, scale, starts, ends, dborder, *sizes, *strides(w_out, dy),
            *ending, num_warps=_warps(plan, "border"), num_stages=1,
        )  # fmt: skip
        plan.join(nothing[0], ends, None if log_decay is None else kept, nothing[1])
    dw_in, dw_out = plan.empty(B, H, L, k, dtype=w_in.dtype), plan.empty(B, H, L, k, dtype=w_out.dtype)
    dvalues, dscale = by_token(values, values.dtype), plan.empty(B, H, L)
    dlog = plan.empty(0) if log_decay is None else plan.empty(B, H, L)
    kernels.block_backward[(plan.pieces,)](
        w_in, w_out, values, dy, log_decay, real, scale, starts, ends, dw_in, dw_out, dvalues, dlog, dscale, dborder, *sizes,
        *strides(w_in, w_out, values, dy, dvalues), *ending, num_warps=_warps(plan, "backward"), num_stages=1,
    )  # fmt: skip
    if several:  # s_b is the scale of the last token before a block
        dscale[:, :, block - 1 : (plan.chunks - 1) * block : block] += dborder[:, :, 1:]
    return dw_in, dw_out, dvalues, dlog, dscale
