"""One vector for each sequence: the input of the heads classify and regress."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.core.segments import Rows, Segments

POOLINGS = ("mean", "max", "mean_max", "first")


def pooled_width(dim: int, pooling: str) -> int:
    return 2 * dim if pooling == "mean_max" else dim


def pool(x: Tensor, segments: Segments | None, pooling: str) -> Tensor:
    """x [B, T, D] -> [S, D], one vector for each sequence ([S, 2D] for mean_max), zeros for a sequence without tokens."""
    if x.shape[0] == 0:
        return x.new_zeros(0, pooled_width(x.shape[2], pooling))
    if segments is None:  # whole rows, so that no size is read from a GPU
        lengths = torch.full((x.shape[0],), x.shape[1], device=x.device)
        return _pool_rows(x, Rows(torch.ones(x.shape[:2], dtype=torch.bool, device=x.device), lengths), pooling)
    return segments.per_sequence([_pool_rows(part, rows, pooling) for part, rows in segments.split(x)])


def _pool_rows(x: Tensor, rows: Rows, pooling: str) -> Tensor:
    if x.shape[1] == 0:
        return x.new_zeros(x.shape[0], pooled_width(x.shape[2], pooling))
    if pooling == "first":
        return x[:, 0]
    mean = x.sum(1) / rows.lengths.clamp(min=1)[:, None].to(x.dtype)
    if pooling == "mean":
        return mean
    largest = x.masked_fill(~rows.mask[..., None], -torch.inf).amax(1)
    largest = torch.where(rows.lengths[:, None] > 0, largest, 0)
    return largest if pooling == "max" else torch.cat([mean, largest], -1)


def last_token(x: Tensor, segments: Segments | None) -> Tensor:
    """x [B, T, D] -> [B, 1, D], each row's last real token."""
    if segments is None:
        return x[:, -1:]
    columns = torch.arange(x.shape[1], device=x.device)
    last = torch.where(segments.mask, columns, 0).amax(1)
    return x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))
