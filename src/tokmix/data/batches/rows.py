"""Batches as a pure function of (seed, epoch, step): any step is available at once, without the steps before it.

The batch of a step is the same for any number of ranks; each rank builds (and reads) only its own part of it.

    RowBatches     rows with their own targets, or masked: token budget, grouped by length, padded or packed
    WindowBatches  a running text in windows of a fixed length (windows.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokmix.core.checks import at_least
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.batches.mask import IGNORE, Masking
from tokmix.data.order import Shuffle
from tokmix.data.tokens import TokenSplit


@dataclass(frozen=True)
class Batch:
    """One rank's part of the batch of one step.

    `total` counts the targets of the whole batch, over all ranks: sum the losses of the targets, divide by it, and a run
    on two ranks has the loss of a run on one. A rank without a row gets one with weight 0, to stay in step.
    """

    ids: Tensor  # [B, T]
    targets: Tensor  # classes [S] int64, scores [S] float32, or next and hidden tokens [B, T] int64, IGNORE elsewhere
    segments: Segments | None  # None: every row is one whole sequence
    rows: tuple[int, ...]  # numbers of the rows or windows, in reading order
    count: int  # targets of this part
    total: int  # targets of all parts
    weight: float = 1.0
    row_weights: Tensor | None = None  # [S] of each row in the loss, 1 on average over train; None: all weigh the same

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        segments = None if self.segments is None else self.segments.to(device)
        ids, targets = self.ids.to(device, non_blocking=non_blocking), self.targets.to(device, non_blocking=non_blocking)
        weights = None if self.row_weights is None else self.row_weights.to(device, non_blocking=non_blocking)
        return replace(self, ids=ids, targets=targets, segments=segments, row_weights=weights)


class Batches(ABC):
    def __init__(self, split: TokenSplit, tokens: int, seed: int, shuffle: bool, rank: int, world: int):
        at_least("tokens", tokens, 1)
        at_least("world", world, 1)
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank} is not below world={world}")
        if len(split) == 0:
            raise ValueError(f"split {split.name} has no rows")
        self.split, self.tokens, self.seed, self.shuffle, self.rank, self.world = split, tokens, seed, shuffle, rank, world

    @abstractmethod
    def steps(self, epoch: int) -> int:
        """How many batches an epoch has; grouping by length may change it a little from epoch to epoch."""

    @abstractmethod
    def batch(self, epoch: int, step: int) -> Batch: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for step in range(start, self.steps(epoch)):
            yield self.batch(epoch, step)

    def _check(self, epoch: int, step: int) -> None:
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"step {step} of epoch {epoch}, which has {self.steps(epoch)}")

    def _mine(self, whole: np.ndarray) -> tuple[np.ndarray, float]:
        """Every world-th item, so that parts have similar lengths; (the first item, weight 0) if none is left."""
        mine = whole[self.rank :: self.world]
        return (mine, 1.0) if len(mine) else (whole[:1], 0.0)


class RowBatches(Batches):
    """Rows in pools of about sixty batches: shuffled into pools, sorted by length within a pool, cut to the budget, shuffled again.

    tokens    most tokens of a batch, padding included; a longer row makes a batch alone
    rows      numbers of the rows to use, if not all (see split.holdout)
    packed    all sequences in one row without padding, ids [1, N]; else one a row, padded to a multiple of pad_to
    mask      hide tokens and make them the targets
    targets   of these rows, where the split's own are not meant
    """

    POOL = 64  # batches

    def __init__(
        self,
        split: TokenSplit,
        *,
        tokens: int = 4096,
        max_rows: int | None = None,
        rows: np.ndarray | None = None,
        seed: int = 0,
        shuffle: bool = True,
        packed: bool = False,
        mask: Masking | None = None,
        pad_to: int = 1,
        rank: int = 0,
        world: int = 1,
        targets: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        super().__init__(split, tokens, seed, shuffle, rank, world)
        at_least("pad_to", pad_to, 1)
        at_least("max_rows", 1 if max_rows is None else max_rows, 1)
        if split.card.stream:
            raise ValueError(f"split {split.name} is a running text: use WindowBatches")
        if mask is None and targets is None and split.targets is None:
            raise ValueError(f"split {split.name} has no targets (task {split.card.task}): give mask, for masked language modelling")
        if rows is not None and len(rows) == 0:
            raise ValueError(f"no rows of split {split.name} were chosen")
        self.rows, self.n = rows, len(split) if rows is None else len(rows)
        self.max_rows, self.packed, self.mask, self.pad_to, self.targets = max_rows or self.n, packed, mask, pad_to, targets
        mean = max(1.0, split.tokens / len(split))
        self.pool = max(1, int(self.POOL * min(tokens / mean, self.max_rows)))  # rows of a pool
        self.pad = split.card.tokenizer["roles"]["pad"]
        self.weight_mean = self._weight_mean()
        self._ends: tuple[int, np.ndarray] | None = None  # (epoch, batches up to the end of each pool)
        self._held: tuple[tuple[int, int], list[np.ndarray]] | None = None  # the pool used last

    def _weight_mean(self) -> float | None:
        """Weights are divided by their mean, so that the loss and the learning rate keep their scale."""
        if self.split.weights is None or not self.shuffle:  # figures count every row once
            return None
        mean = float((self.split.weights if self.rows is None else self.split.weights[self.rows]).mean(dtype=np.float64))
        if not mean > 0:
            raise ValueError(f"every weight of the rows of {self.split.name} is 0: there is nothing to learn from")
        return mean

    def steps(self, epoch: int) -> int:
        return int(self._pool_ends(epoch)[-1])

    def _pool_ends(self, epoch: int) -> np.ndarray:
        if self._ends is None or self._ends[0] != epoch:
            pools = -(-self.n // self.pool)
            self._ends = (epoch, np.cumsum([len(self._bounds(self._sorted(epoch, k)[1])) - 1 for k in range(pools)]))
        return self._ends[1]

    def _sorted(self, epoch: int, pool: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows of a pool by length, their lengths)"""
        places = np.arange(pool * self.pool, min((pool + 1) * self.pool, self.n))
        if self.shuffle:
            places = Shuffle(self.n, self.seed, epoch)(places)
        rows = places if self.rows is None else self.rows[places]
        lengths = self.split.lengths(rows)
        order = np.argsort(lengths, kind="stable")
        return rows[order], lengths[order]

    def _bounds(self, lengths: np.ndarray) -> list[int]:
        """Where batches begin and end among rows sorted by length."""
        wide, ends = self._wide(lengths).tolist(), np.cumsum(lengths).tolist()
        bounds = [0]

        def size(start: int, stop: int) -> int:
            """Tokens of a batch of these rows."""
            return ends[stop - 1] - (ends[start - 1] if start else 0) if self.packed else (stop - start) * wide[stop - 1]

        while (start := bounds[-1]) < len(wide):
            last = min(len(wide), start + self.max_rows)
            bounds.append(start + max(1, bisect_right(range(start + 1, last + 1), self.tokens, key=lambda stop: size(start, stop))))
        if len(bounds) > 2:  # the last batch has the remaining rows, possibly one: share rows with its neighbour
            middle = (bounds[-3] + bounds[-1]) // 2
            if middle > bounds[-3] and max(size(bounds[-3], middle), size(middle, bounds[-1])) <= self.tokens:
                bounds[-2] = middle
        return bounds

    def _wide(self, lengths: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-lengths // self.pad_to)) * self.pad_to

    def _pool(self, epoch: int, pool: int) -> list[np.ndarray]:
        """The batches of a pool, in the order they are used."""
        if self._held is None or self._held[0] != (epoch, pool):
            rows, lengths = self._sorted(epoch, pool)
            bounds = self._bounds(lengths)
            order = np.arange(len(bounds) - 1)
            if self.shuffle:
                order = Shuffle(len(order), self.seed, epoch, pool, 1)(order)
            self._held = ((epoch, pool), [rows[bounds[i] : bounds[i + 1]] for i in order])
        return self._held[1]

    def global_rows(self, epoch: int, step: int) -> np.ndarray:
        """The rows of a step's whole batch, over all ranks."""
        self._check(epoch, step)
        ends = self._pool_ends(epoch)
        pool = int(np.searchsorted(ends, step, side="right"))
        return self._pool(epoch, pool)[step - (int(ends[pool - 1]) if pool else 0)]

    def batch(self, epoch: int, step: int) -> Batch:
        whole = self.global_rows(epoch, step)
        mine, weight = self._mine(whole)
        ids, lengths = self.split.rows(mine)
        width = int(lengths.sum()) if self.packed else int(self._wide(lengths.max()))
        if self.mask is None:
            given = self._given(mine)
            targets = torch.from_numpy(given.astype(np.int64 if self.split.card.task == "classify" else np.float32))
            count, total = len(mine), len(whole)
        else:
            ids, hidden = self.mask(ids, lengths, epoch, mine)
            targets = lay_out(hidden, lengths, width, IGNORE, self.packed)
            count = int((hidden != IGNORE).sum())
            total = int(self.mask.count(self.split.lengths(whole) - self.split.card.tokenizer["specials"]).sum())
            if weight == 0:
                targets.fill_(IGNORE)
        laid = lay_out(ids, lengths, width, self.pad, self.packed)
        if self.packed or width > lengths.max():
            numbers = np.repeat(np.arange(1, len(mine) + 1), lengths) if self.packed else np.ones(len(ids), dtype=np.int64)
            segments = Segments(lay_out(numbers, lengths, width, 0, self.packed))
        else:
            segments = Segments.rows_of(torch.from_numpy(lengths))
        return Batch(laid, targets, segments, tuple(mine.tolist()), count if weight else 0, total, weight, self._row_weights(mine))

    def _given(self, rows: np.ndarray) -> np.ndarray:
        if self.targets is not None:
            return self.targets(rows)
        assert self.split.targets is not None
        return self.split.targets[rows]

    def _row_weights(self, rows: np.ndarray) -> Tensor | None:
        if self.weight_mean is None or self.mask is not None:  # masked language modelling weighs all rows equally
            return None
        assert self.split.weights is not None
        return torch.from_numpy(self.split.weights[rows].astype(np.float32) / np.float32(self.weight_mean))


def lay_out(values: np.ndarray, lengths: np.ndarray, width: int, fill: int, packed: bool = False) -> Tensor:
    """Values [N] of rows end to end -> [rows, width] with `fill` behind each row's end; packed: [1, N] as they are."""
    if packed:
        return torch.from_numpy(values)[None]
    laid = np.full((len(lengths), width), fill, dtype=values.dtype)
    laid[np.arange(width) < lengths[:, None]] = values
    return torch.from_numpy(laid)
