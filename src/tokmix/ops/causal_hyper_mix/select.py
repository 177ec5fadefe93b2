"""Causal HyperMixing: kernels if device, dtype and shape allow, else the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix import block_op, blocks, op, reference
from tokmix.ops.causal_hyper_mix.reference import Carry
from tokmix.ops.dispatch import A100, ANY_GPU, H100, KERNEL_DTYPES, forced, use_triton
from tokmix.ops.hyper_mix import length_scale

WIDEST = (512, 256)  # k and e that programs can hold on chip
BLOCKS, WIDEST_IN_BLOCKS = (16, 32, 64, 128), 128  # tokens of a block, which is one tile; largest k and e
ON_CHIP = {2: 8192, 4: 4096}  # tokens times k or e, by the bytes of a number: more does not fit a multiprocessor


def causal_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, power: float | None, carry: Carry
) -> tuple[Tensor, Tensor, Carry]:
    """Arguments and result as of the reference."""
    e = values.shape[3]
    needs = ANY_GPU if e <= 64 else A100 if e <= 128 else H100
    if not use_triton(values, carry.hidden.dtype, _fits(w_in, w_out, values, carry), needs):
        return reference.causal_hyper_mix(w_in, w_out, values, log_decay, real, power, carry)
    counts, log_decay = _counts(values, log_decay, real, carry.count)
    # A real token counts itself, so the clamp only matters for rows without a token yet.
    scale = length_scale(counts.clamp(min=1), values.shape[3], power)
    given = (w_in, w_out, values, log_decay, real, scale, carry.hidden)
    y, hidden, *_ = op.forward.entry(*given)(*given)
    return y, counts, Carry(hidden, counts[:, :, -1])


def block_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, power: float | None, block: int
) -> tuple[Tensor, Tensor]:
    """Arguments and result as of `blocks.block_hyper_mix`."""
    if not _block_kernel(w_in, w_out, values, block):
        return blocks.block_hyper_mix(w_in, w_out, values, log_decay, real, power, block)
    B, H = w_in.shape[:2]
    counts, log_decay = _counts(values, log_decay, real, torch.zeros(B, H, device=values.device))
    scale = length_scale(counts.clamp(min=1), values.shape[3], power)
    given = (w_in, w_out, values.to(w_in.dtype), log_decay, real, scale)
    y = block_op.forward.entry(*given)(*given, block)[0]
    return y.to(values.dtype), counts


def _block_kernel(w_in: Tensor, w_out: Tensor, values: Tensor, block: int) -> bool:
    """float32 only on request: its products do not use tensor cores, and it was not timed."""
    k, e = w_in.shape[3], values.shape[3]
    wide = max(k, e)
    small = block in BLOCKS and wide <= WIDEST_IN_BLOCKS and block * wide <= ON_CHIP.get(w_in.dtype.itemsize, 0)
    allowed = w_in.dtype != torch.float32 or forced() == "triton"
    fits = small and allowed and values.numel() > 0 and w_in.dtype == w_out.dtype
    # Before the H100, the backward kernel for blocks of 64 and wide heads takes 192 KiB of shared memory.
    widest = block == 64 and wide > 64
    return use_triton(values, w_in.dtype, fits, H100 if widest else ANY_GPU if max(block, wide) <= 64 else A100)


def _fits(w_in: Tensor, w_out: Tensor, values: Tensor, carry: Carry) -> bool:
    known = all(x.dtype in KERNEL_DTYPES for x in (w_in, w_out, values)) and carry.hidden.dtype == carry.count.dtype == torch.float32
    return known and values.numel() > 0 and w_in.shape[3] <= WIDEST[0] and values.shape[3] <= WIDEST[1]


def _counts(values: Tensor, log_decay: Tensor | None, real: Tensor | None, first: Tensor) -> tuple[Tensor, Tensor | None]:
    """n_t [B, H, L], and log λ with zeros at padding."""
    if log_decay is not None:
        log_decay = log_decay.float() if real is None else torch.where(real[:, None], log_decay.float(), 0)
        return op.counts_forward.entry(log_decay, first)(log_decay, real, first), log_decay
    here = torch.ones(values.shape[0], 1, values.shape[2], device=values.device) if real is None else real[:, None].float()
    return here.cumsum(2) + first[..., None], None
