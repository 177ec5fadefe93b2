"""The attention masks of Hugging Face models -> Segments, for mixers that stand where attention was.

A layer is given None, [B, K] (1 = real token), or [B, 1, Q, K]: bool (True = may read) or 0 and a large negative number. K counts the
tokens in the cache too. Whatever a mixer cannot honour is an error, never ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core.segments import Segments


def read_mask(mask: object, length: int, causal: bool, windowed: bool) -> Segments | None:
    """Of the last `length` tokens. windowed: attention read only near tokens there, which the mixer need not follow."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4):
        raise ValueError(f"a swapped layer cannot read an attention mask of type {type(mask).__name__}; use attn_implementation='sdpa'")
    host = mask.detach().cpu()
    if host.dim() == 2:
        real = host[:, -length:] != 0
        return None if bool(real.all()) else Segments.from_mask(real).to(mask.device)
    if host.shape[2] != length:
        raise ValueError(f"an attention mask of shape {list(host.shape)} does not fit {length} tokens")
    seen = host if host.dtype == torch.bool else host > torch.finfo(host.dtype).min / 2
    if not bool((seen == seen[:, :1]).all()):
        raise ValueError("a swapped layer cannot honour a mask that differs between heads")
    return _segments(seen[:, 0], length, causal, windowed, mask.device)


def _segments(seen: Tensor, length: int, causal: bool, windowed: bool, device: torch.device) -> Segments | None:
    """seen [B, Q, K]"""
    past = seen.shape[2] - length
    own = seen[:, :, past:]  # [B, Q, Q]
    # A key is real where some later token of its row reads it; a row of padding alone may be all True, against NaN.
    real = own.diagonal(dim1=1, dim2=2)
    if causal:
        ahead = own.triu(1).any(2)
        real = real & ~ahead
    elif not windowed:
        real = own[:, 0] if bool((own == own[:, :1]).all()) else real
    # Two neighbours that read each other are of one sequence; a hole in a padded row is not an end.
    linked = own.diagonal(offset=-1, dim1=1, dim2=2)
    starts = real & ~torch.cat([torch.zeros_like(real[:, :1]), linked], dim=1)
    number = starts.long().cumsum(1)
    packed = torch.where(real, number, 0)
    if past and bool((number > 1).any()):
        raise ValueError("a swapped layer with a cache continues one sequence a row; this mask packs several")
    if not windowed:
        expected = (packed[:, :, None] == packed[:, None]) & real[:, :, None]
        expected = expected.tril() if causal else expected
        if not bool(((own & real[:, None]) == expected)[real].all()):
            raise ValueError("a swapped layer can honour padding, packed rows and the causal order, not this attention mask")
    if bool((number > 1).any()):
        return Segments(packed).to(device)
    return None if bool(real.all()) else Segments.from_mask(real).to(device)


def read_borders(positions: object, ends: object, x: Tensor) -> Segments | None:
    """Of one packed row x [1, T, D] without a mask, as flash attention reads it: its documents end where `ends` (cu_seq_lens) says, else
    where the positions [1, T] do not go on."""
    at = torch.arange(x.shape[1])
    if isinstance(ends, Tensor):
        number = torch.bucketize(at, ends[1:].cpu().long(), right=True)
    elif isinstance(positions, Tensor) and positions.shape == (1, len(at)):
        number = torch.cat([at[:1] * 0, (positions[0].cpu().diff() != 1).cumsum(0)])
    else:
        return None
    return Segments(number[None] + 1).to(x.device) if int(number[-1]) else None
