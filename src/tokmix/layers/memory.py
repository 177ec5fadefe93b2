"""The state of decoding. Each row has its own position, and a row without new tokens keeps its state.

New tokens come as x [B, L, ...] from column 0 on, `lengths` [B] of them in each row (all L where None).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core.mixer import in_place
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
    """A cache that grows: slot p holds the row's token at position p. [B, N, ...] -> [B, N + L, ...].

    Slots from a row's position on are undefined; readers use positions, never the cache's size,
    which is the most that any row can need (known without waiting for the GPU). Inside `inplace_states` the new tokens are
    written into the room behind the cache, and only a cache without room is copied."""
    allowed = in_place()
    if allowed is None:
        slots = torch.arange(cache.shape[1] + x.shape[1], device=x.device)
        both = torch.cat([cache, x.to(cache.dtype)], dim=1)
        index = torch.where(slots < position[:, None], slots, slots - position[:, None] + cache.shape[1])
        return _pick(both, index.clamp(max=both.shape[1] - 1))
    L, at = x.shape[1], allowed.position
    if allowed.fixed:
        grown = cache
    else:
        grown = _with_room(cache, (cache.shape[1] if at is None else at) + L, allowed.room)
    if at is not None:
        grown.narrow(1, at, L).copy_(x)
        return grown
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    grown[rows, position[:, None] + torch.arange(L, device=x.device)] = x.to(grown.dtype)
    return grown


def _with_room(cache: Tensor, size: int, room: int) -> Tensor:
    """The first `size` slots of a cache [B, N, ...] that can hold them, as a view; the memory behind is room to grow. Heads come
    before slots in memory, [B, H, slots, e], which attention reads fastest."""
    shape = (cache.shape[0], size, *cache.shape[2:])
    if _room(cache) >= size:
        return cache.as_strided(shape, cache.stride())
    slots, kept = max(room, size + size // 2), min(cache.shape[1], size)
    if cache.dim() == 4:
        B, _, H, e = shape
        grown = cache.new_empty(B, H, slots, e).transpose(1, 2)
    else:
        grown = cache.new_empty(cache.shape[0], slots, *cache.shape[2:])
    grown.zero_()  # an unwritten slot is multiplied by a weight of zero, and NaN would stay NaN
    grown[:, :kept] = cache[:, :kept]
    return grown[:, :size]


def _room(cache: Tensor) -> int:
    """How many slots the memory behind a cache made by `_with_room` has; 0 for any other tensor."""
    stride, shape = cache.stride(), cache.shape
    if cache.dim() == 4:
        e = shape[3]
        slots = stride[2] // max(1, e)
        made_here = stride[3] == 1 and stride[1] == e and stride[0] == shape[2] * stride[2] == shape[2] * slots * e
    else:
        slots = stride[0] // max(1, stride[1])
        made_here = cache.dim() == 3 and stride[2] == 1 and stride[1] == shape[2]
    needed = cache.storage_offset() + shape[0] * stride[0]
    return slots if made_here and needed * cache.element_size() <= cache.untyped_storage().nbytes() else 0


def recent(buffer: Tensor, x: Tensor, rows: Rows | None) -> Tensor:
    """The last K tokens of each row, newest last. [B, K, ...] -> [B, K, ...]"""
    both = torch.cat([buffer, x.to(buffer.dtype)], dim=1)
    if rows is None:
        return both[:, x.shape[1] :]
    return _pick(both, rows.lengths[:, None] + torch.arange(buffer.shape[1], device=x.device))


def check_room(kind: str, limit: int, position: Tensor, counts: Tensor | int, bound: int | None = None) -> None:
    """Raise if a row's position would exceed a mixer's limit. `bound` is a host-side upper bound of the new
    positions: within the limit it saves asking the device. Compiled code and CUDA graphs rely on the caller having checked."""
    if torch.compiler.is_compiling() or position.is_meta or (bound is not None and bound <= limit):
        return
    if position.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    longest = int((position + counts).max())
    if longest > limit:
        raise ValueError(f"a sequence of {longest} tokens is longer than mixer {kind!r} takes: max_len={limit}")
