"""A running text in windows of a fixed length, every token once an epoch.

Documents lie end to end, each with its end-of-text token. To predict every token, also the first, the text is read as if
an end-of-text token stood before it:

    text      a  b  .  c  d  e  .       (. = end of text)
    inputs    .  a  b  .  c  d  e
    targets   a  b  .  c  d  e  .

A document's inputs begin with the end of the one before, so with `documents` each is a segment of its own and begins alike.
"""

from __future__ import annotations

from tokmix.core.checks import at_least
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.batches.mask import IGNORE, Masking
from tokmix.data.batches.rows import Batch, Batches, lay_out
from tokmix.data.order import Shuffle, number
from tokmix.data.tokens import TokenSplit, runs


class Stream:
    """Some documents of a split (all, if rows is None) end to end."""

    def __init__(self, split: TokenSplit, rows: np.ndarray | None = None):
        self.split, self.rows = split, rows
        self.ends: np.ndarray = split.offsets  # [documents + 1], where each begins and ends
        if rows is not None:
            self.ends = np.concatenate([[0], np.cumsum(split.lengths(rows))])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Some windows end to end. [W], [W] -> [sum of lengths] int64"""
        places = runs(starts, lengths)
        if self.rows is None or len(places) == 0:
            return self.split.at(places)
        first, last = (np.searchsorted(self.ends, side, side="right") - 1 for side in (starts, starts + lengths - 1))
        owner = np.repeat(first, lengths)  # the document of each token; most windows lie within one
        across = np.repeat(first != last, lengths)
        owner[across] = np.searchsorted(self.ends, places[across], side="right") - 1
        return self.split.at(places + (self.split.offsets[self.rows] - self.ends[:-1])[owner])

    def documents(self, start: int, stop: int) -> list[int]:
        """How many tokens of each document stand between start and stop."""
        inner = self.ends[np.searchsorted(self.ends, start, side="right") : np.searchsorted(self.ends, stop, side="left")]
        return np.diff([start, *inner.tolist(), stop]).tolist()

    def endings(self, start: int, stop: int) -> int:
        """The number of documents that end between start and stop, which is the number of end-of-text tokens there."""
        return int(np.searchsorted(self.ends, stop, side="right") - np.searchsorted(self.ends, start, side="right"))


class WindowBatches(Batches):
    """Windows of `length` tokens, as many to a batch as `tokens` allows. The targets are the next tokens, or with `mask` the hidden ones.

    If shuffled, windows begin at other places in every epoch. The first and the last window may be shorter, and are padded.
    """

    def __init__(
        self,
        split: TokenSplit,
        *,
        length: int,
        tokens: int = 4096,
        rows: np.ndarray | None = None,
        seed: int = 0,
        shuffle: bool = True,
        documents: bool = False,
        mask: Masking | None = None,
        rank: int = 0,
        world: int = 1,
    ):
        super().__init__(split, tokens, seed, shuffle, rank, world)
        at_least("length", length, 1)
        if not split.card.stream:
            raise ValueError(f"split {split.name} holds rows of a table, not a running text: use RowBatches, or prepare with task=lm")
        if rows is not None and len(rows) == 0:
            raise ValueError(f"no documents of split {split.name} were chosen")
        self.stream, self.length, self.documents, self.mask = Stream(split, rows), length, documents, mask
        self.size = max(1, tokens // length)  # windows of a batch
        roles = split.card.tokenizer["roles"]
        self.eot, self.pad = roles["eot"], roles["pad"]

    def _lead(self, epoch: int) -> int:
        """Tokens of the short window that comes first."""
        return number(self.seed, epoch, 2) % self.length if self.shuffle and len(self.stream) > self.length else 0

    def windows(self, epoch: int) -> int:
        lead = self._lead(epoch)
        return -(-(len(self.stream) - lead) // self.length) + (lead > 0)

    def steps(self, epoch: int) -> int:
        return -(-self.windows(epoch) // self.size)

    def bounds(self, epoch: int, windows: np.ndarray) -> np.ndarray:
        """Where windows begin and end in the stream. [W] -> [W, 2]"""
        lead = self._lead(epoch)
        starts = windows * self.length - (self.length - lead if lead else 0)
        return np.stack([starts.clip(0), (starts + self.length).clip(0, len(self.stream))], axis=1)

    def batch(self, epoch: int, step: int) -> Batch:
        self._check(epoch, step)
        count = self.windows(epoch)
        whole = np.arange(step * self.size, min((step + 1) * self.size, count))
        if self.shuffle:
            whole = Shuffle(count, self.seed, epoch)(whole)
        mine, weight = self._mine(whole)
        every, bounds = self.bounds(epoch, whole), self.bounds(epoch, mine)
        lengths = bounds[:, 1] - bounds[:, 0]
        width = int((every[:, 1] - every[:, 0]).max())  # of the whole batch: the same on every rank
        if self.mask is None:
            ids, targets = self._next(bounds[:, 0], lengths)
        else:
            ids, targets = self.mask(self.stream.read(bounds[:, 0], lengths), lengths, epoch, mine)
        if weight == 0:
            targets = np.full_like(targets, IGNORE)
        return Batch(
            lay_out(ids, lengths, width, self.pad),
            lay_out(targets, lengths, width, IGNORE),
            self._segments(bounds.tolist(), width),
            tuple(mine.tolist()),
            count=int((targets != IGNORE).sum()),
            total=self._total(every.tolist()),
            weight=weight,
        )

    def _next(self, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, next tokens) of some windows end to end."""
        targets = self.stream.read(starts, lengths)
        inputs = np.empty_like(targets)
        inputs[1:] = targets[:-1]
        begins = (np.cumsum(lengths) - lengths)[lengths > 0]  # of each window: the token before it
        before = starts[lengths > 0]
        inputs[begins] = np.where(before == 0, self.eot, self.stream.read(np.maximum(before - 1, 0), np.ones_like(before)))
        return inputs, targets

    def _total(self, bounds: list[list[int]]) -> int:
        if self.mask is None:
            return sum(stop - start for start, stop in bounds)
        return int(self.mask.count(np.array([stop - start - self.stream.endings(start, stop) for start, stop in bounds])).sum())

    def _segments(self, bounds: list[list[int]], width: int) -> Segments | None:
        if self.documents:
            return Segments.from_lengths([self.stream.documents(start, stop) for start, stop in bounds], width)
        lengths = [stop - start for start, stop in bounds]
        return None if min(lengths) == width else Segments.from_lengths(lengths, width)
