"""Causal HyperMixing: the kernels where device, dtype and shape allow, the reference elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix import library, reference
from tokmix.ops.causal_hyper_mix.reference import Carry
from tokmix.ops.dispatch import KERNEL_DTYPES, use_triton
from tokmix.ops.hyper_mix import length_scale

WIDEST = (512, 256)  # k and e that programs can hold on chip


def causal_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, power: float | None, carry: Carry
) -> tuple[Tensor, Tensor, Carry]:
    """The reference's contract."""
    if not use_triton(values, carry.hidden.dtype, _fits(w_in, w_out, values, carry)):
        return reference.causal_hyper_mix(w_in, w_out, values, log_decay, real, power, carry)
    counts, log_decay = _counts(values, log_decay, real, carry.count)
    # A real token counts as one itself, so the clamp changes nothing but rows that have no token yet.
    scale = length_scale(counts.clamp(min=1), values.shape[3], power)
    y, hidden, *_ = library.causal_hyper_mix(w_in, w_out, values, log_decay, real, scale, carry.hidden)
    return y, counts, Carry(hidden, counts[:, :, -1])


def _fits(w_in: Tensor, w_out: Tensor, values: Tensor, carry: Carry) -> bool:
    known = all(x.dtype in KERNEL_DTYPES for x in (w_in, w_out, values)) and carry.hidden.dtype == carry.count.dtype == torch.float32
    return known and values.numel() > 0 and w_in.shape[3] <= WIDEST[0] and values.shape[3] <= WIDEST[1]


def _counts(values: Tensor, log_decay: Tensor | None, real: Tensor | None, first: Tensor) -> tuple[Tensor, Tensor | None]:
    """n_t [B, H, L], and log λ with zeros at padding."""
    if log_decay is not None:
        log_decay = log_decay.float() if real is None else torch.where(real[:, None], log_decay.float(), 0)
        return library.decayed_counts(log_decay, real, first), log_decay
    here = torch.ones(values.shape[0], 1, values.shape[2], device=values.device) if real is None else real[:, None].float()
    return here.cumsum(2) + first[..., None], None
