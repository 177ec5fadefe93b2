"""What decoding remembers. Each row has its own position, and a row without new tokens keeps its memory as it was.

New tokens come as x [B, L, ...] from column 0 on, `lengths` [B] of them in each row (all L where None).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core.segments import Rows


def start(batch: int, like: Tensor) -> Tensor:
    """The position of each row before its first token."""
    return torch.zeros(batch, dtype=torch.long, device=like.device)


def new_counts(x: Tensor, rows: Rows | None) -> Tensor | int:
    """How many new tokens each row brings: [B], or one number for all."""
    return x.shape[1] if rows is None else rows.lengths


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, ...], index [B, K] -> [B, K, ...]"""
    index = index.view(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
    return x.gather(1, index)


def append(cache: Tensor, x: Tensor, position: Tensor) -> Tensor:
    """A cache that grows: the token at position p of a row stands in its slot p. [B, N, ...] -> [B, N + L, ...].

    Slots from a row's position on hold nothing of meaning; readers look at positions, never at the cache's size,
    which is the most that any row can need (known without asking the GPU)."""
    slots = torch.arange(cache.shape[1] + x.shape[1], device=x.device)
    both = torch.cat([cache, x.to(cache.dtype)], dim=1)
    index = torch.where(slots < position[:, None], slots, slots - position[:, None] + cache.shape[1])
    return _pick(both, index.clamp(max=both.shape[1] - 1))


def recent(buffer: Tensor, x: Tensor, rows: Rows | None) -> Tensor:
    """The last K tokens of each row, newest last. [B, K, ...] -> [B, K, ...]"""
    both = torch.cat([buffer, x.to(buffer.dtype)], dim=1)
    if rows is None:
        return both[:, x.shape[1] :]
    return _pick(both, rows.lengths[:, None] + torch.arange(buffer.shape[1], device=x.device))


def check_room(kind: str, limit: int, position: Tensor, counts: Tensor | int, bound: int | None = None) -> None:
    """Raise where a row's position would pass a mixer's limit. `bound` is a host-side upper bound of the new
    positions: within the limit it saves asking the device. Compiled code and CUDA graphs rely on the caller having checked."""
    if torch.compiler.is_compiling() or position.is_meta or (bound is not None and bound <= limit):
        return
    if position.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    longest = int((position + counts).max())
    if longest > limit:
        raise ValueError(f"a sequence of {longest} tokens is longer than mixer {kind!r} takes: max_len={limit}")
