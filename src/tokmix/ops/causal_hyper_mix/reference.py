"""Causal HyperMixing in plain torch (our extension of the paper): an exact scan in chunks.

    H_t = λ_t H_{t-1} + w1_t v_tᵀ      [k, e] per head          n_t = λ_t n_{t-1} + 1, the effective count
    y_t = GELU(c(n_t) H_t)ᵀ w2_t                                c: see length_scale of hyper_mix

GELU acts on the whole state, so there is no chunk-parallel identity as in linear attention: every state is formed.
Only one chunk's states exist at a time; in training each chunk is recomputed in the backward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.hyper_mix import length_scale
from tokmix.ops.recompute import recomputed

CHUNK = 16


class Carry(NamedTuple):
    hidden: Tensor  # [B, H, k, e]
    count: Tensor  # type: ignore[assignment]  # [B, H]; tuple has a method of that name, which nobody calls here


def causal_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, power: float | None, carry: Carry
) -> tuple[Tensor, Tensor, Carry]:
    """w_in, w_out [B, H, L, k], values [B, H, L, e], log_decay [B, H, L] (log λ, None = no decay), real [B, L] (True =
    real token; the others leave the state alone) -> y [B, H, L, e], counts n_t [B, H, L], the state after the last token."""
    B, H, L, _ = w_in.shape
    pad = -L % CHUNK
    if real is None:
        real = torch.ones(B, L, dtype=torch.bool, device=w_in.device)
    given_dtype, dtype = values.dtype, carry.hidden.dtype
    here = real[:, None].to(dtype)  # [B, 1, L]
    w_in = F.pad(w_in.to(dtype) * here[..., None], (0, 0, 0, pad))
    w_out, values = (F.pad(x.to(dtype), (0, 0, 0, pad)) for x in (w_out, values))
    here = F.pad(here.expand(B, H, L), (0, pad))
    if log_decay is not None:
        log_decay = F.pad(torch.where(real[:, None], log_decay.to(dtype), 0), (0, pad))
    outputs, numbers = [], []
    for start in range(0, L, CHUNK):
        part = slice(start, start + CHUNK)
        decay = None if log_decay is None else log_decay[:, :, part]
        given = (w_in[:, :, part], w_out[:, :, part], values[:, :, part], decay, here[:, :, part], power, *carry)
        y, counts, hidden = recomputed(_chunk, *given) if L > CHUNK else _chunk(*given)
        carry = Carry(hidden, counts[:, :, -1])
        outputs.append(y)
        numbers.append(counts)
    return torch.cat(outputs, dim=2)[:, :, :L].to(given_dtype), torch.cat(numbers, dim=2)[:, :, :L], carry


def _chunk(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, here: Tensor, power: float | None, hidden: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One chunk of C tokens: every state in it, [B, H, C, k, e], and what is read from each. Gives (y, counts, the
    last state)."""
    added = w_in[..., :, None] * values[..., None, :]
    if log_decay is None:
        states = added.cumsum(2) + hidden[:, :, None]
        counts = here.cumsum(2) + count[..., None]
    else:
        total = log_decay.cumsum(2)  # [B, H, C]
        earlier = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=total.device).tril()
        kept = (total[..., :, None] - total[..., None, :]).masked_fill(~earlier, -torch.inf).exp()  # [B, H, C, C]
        carried = total.exp()
        states = (kept @ added.flatten(3)).view_as(added) + carried[..., None, None] * hidden[:, :, None]
        counts = (kept * here[..., None, :]).sum(-1) + carried * count[..., None]
    # A real token counts itself, so the clamp only matters for rows without a token yet.
    scale = length_scale(counts.clamp(min=1), values.shape[-1], power)
    y = (w_out[..., None, :] @ F.gelu(states * scale[..., None, None])).squeeze(-2)
    return y, counts, states[:, :, -1]


def matmul_flops(length: int, heads: int, e: int, k: int, decay: bool) -> int:
    """FLOPs of the scan alone; an incomplete last chunk costs a whole one."""
    padded = length + -length % CHUNK
    return heads * padded * (2 * k * e + (2 * CHUNK * k * e if decay else 0))


def recomputed_flops(length: int, heads: int, e: int, k: int, decay: bool) -> int:
    """FLOPs that the backward pass computes again: the states, not the outputs. A single chunk is kept."""
    padded = length + -length % CHUNK
    return heads * padded * 2 * CHUNK * k * e if decay and length > CHUNK else 0
