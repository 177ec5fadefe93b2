"""Batches in few shapes, and the static buffers of a shape: a CUDA graph is recorded once for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.segments import Segments
from tokmix.data.batches.mask import IGNORE
from tokmix.data.batches.rows import Batch

LADDER = [1, 2, 3, 4, *(size for power in range(3, 25) for size in (3 << (power - 2), 1 << power))]  # 1 2 3 4 6 8 12 16 24 32 48 ...


def bucket(size: int, most: int | None = None) -> int:
    """The next size of the ladder, or `most` where that is nearer."""
    step = LADDER[bisect_left(LADDER, size)]
    return min(step, most) if most is not None and most >= size else step


def lengths_of(batch: Batch) -> Tensor:
    """[B], of one sequence a row from column 0 on."""
    if batch.segments is None:
        return torch.full((batch.ids.shape[0],), batch.ids.shape[1])
    return torch.tensor(batch.segments.lengths)


def pad(batch: Batch, max_len: int, max_rows: int | None, causal: bool = False, pin: bool = False) -> Batch:
    """The batch in a shape of the ladder. Added rows hold one token and weigh nothing. Whole rows need no segments, and neither do rows of
    a causal model, since nothing looks at what stands behind their end."""
    rows, width = batch.ids.shape
    columns, more = bucket(width, max_len) - width, bucket(rows, max_rows) - rows
    if not columns and not more and batch.segments is None and not batch.targets.is_floating_point():  # the usual windows of a text
        return replace(batch, ids=batch.ids.pin_memory(), targets=batch.targets.pin_memory()) if pin else batch
    ids = F.pad(batch.ids, (0, columns, 0, more))
    scores, below = batch.targets.is_floating_point(), (0, 0) * (batch.targets.dim() - 1)  # scores: [S], of several labels [S, classes]
    by_token = batch.targets.dim() == 2 and not scores
    targets = F.pad(batch.targets, (0, columns, 0, more) if by_token else (*below, 0, more), value=0.0 if scores else IGNORE)
    weights = torch.ones(rows) if scores and batch.row_weights is None else batch.row_weights
    weights = None if weights is None else F.pad(weights, (0, more))
    lengths = F.pad(lengths_of(batch), (0, more), value=1)
    whole = causal or bool((lengths == ids.shape[1]).all())
    segments = None if whole else Segments.rows_of(lengths, ids.shape[1])
    if pin:
        ids, targets, weights = ids.pin_memory(), targets.pin_memory(), None if weights is None else weights.pin_memory()
    return replace(batch, ids=ids, targets=targets, segments=segments, row_weights=weights)


@dataclass
class BatchSlot:
    """The static inputs of one shape of batch, on the device."""

    ids: Tensor  # [B, T]
    targets: Tensor
    lengths: Tensor | None  # [B]; None: every row is one sequence of the full width
    weights: Tensor | None  # [B]
    scale: Tensor  # []

    @staticmethod
    def shape(batch: Batch) -> Hashable:
        return (*batch.ids.shape, batch.segments is None, batch.row_weights is None)

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> BatchSlot:
        lengths = None if batch.segments is None else torch.tensor(batch.segments.lengths, device=device)
        weights = None if batch.row_weights is None else batch.row_weights.to(device, copy=True)
        ids, targets = batch.ids.to(device, copy=True), batch.targets.to(device, copy=True)
        return cls(ids, targets, lengths, weights, torch.zeros((), device=device))

    def fill(self, batch: Batch) -> None:
        self.ids.copy_(batch.ids, non_blocking=True)
        self.targets.copy_(batch.targets, non_blocking=True)
        if self.lengths is not None:
            assert batch.segments is not None
            self.lengths.copy_(torch.tensor(batch.segments.lengths), non_blocking=True)
        if self.weights is not None:
            assert batch.row_weights is not None
            self.weights.copy_(batch.row_weights, non_blocking=True)

    def batch(self, like: Batch) -> Batch:
        segments = None if self.lengths is None else Segments.padded(self.lengths, self.ids.shape[1])
        return replace(like, ids=self.ids, targets=self.targets, segments=segments, row_weights=self.weights)


@dataclass(frozen=True)
class Rows:
    """A batch: numbers of rows, and the columns that are read of them."""

    index: Tensor  # [B]
    width: int
    total: int = 1
    weight: float = 1.0

    def to(self, device: torch.device) -> Rows:
        return replace(self, index=self.index.to(device))


@dataclass
class RowsSlot:
    index: Tensor  # [B]
    width: int
    scale: Tensor  # []

    @staticmethod
    def shape(batch: Rows) -> Hashable:
        return len(batch.index), batch.width

    @classmethod
    def of(cls, batch: Rows, device: torch.device) -> RowsSlot:
        return cls(batch.index.to(device, copy=True), batch.width, torch.ones((), device=device))

    def fill(self, batch: Rows) -> None:
        self.index.copy_(batch.index, non_blocking=True)

    def batch(self, like: Rows) -> Rows:
        return replace(like, index=self.index)
