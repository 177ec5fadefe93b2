"""Build the next batch while the device works on the current one. Otherwise a small model on a GPU waits for rows.

Batches are a function of (seed, epoch, step), so building one early does not change it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tokmix.data.batches.rows import Batch, Batches

Place = tuple[int, int]  # epoch, step of the epoch


class Prefetch:
    """depth 0: build every batch on request, in the caller's thread."""

    def __init__(self, batches: Batches, depth: int, prepare: Callable[[Batch], Batch] | None = None):
        """prepare: applied to each batch in the same thread."""
        self.batches, self.depth, self.prepare = batches, depth, prepare
        # One thread: readers cache what they used last and are not thread-safe.
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="batches") if depth else None
        self.coming: list[Future[tuple[Place, Batch]]] = []
        self.expected: Place | None = None  # the request that is expected next
        self.at: Place = (0, 0)  # the place that is built next

    def take(self, epoch: int, step: int) -> tuple[Place, Batch]:
        """The batch at this place, or past the end of an epoch the first one of the next -> (its place, the batch)."""
        if self.reader is None:
            return self._build((epoch, step))
        if self.expected != (epoch, step):  # the first request, or one after a resume
            for other in self.coming:
                other.result()
            self.coming, self.at = [], (epoch, step)
        while len(self.coming) <= self.depth:
            self.coming.append(self.reader.submit(lambda: self._build(self.at)))
        place, batch = self.coming.pop(0).result()
        self.expected = (place[0], place[1] + 1)
        return place, batch

    def _build(self, place: Place) -> tuple[Place, Batch]:
        epoch, step = place
        while step >= self.batches.steps(epoch):
            epoch, step = epoch + 1, 0
        self.at, batch = (epoch, step + 1), self.batches.batch(epoch, step)
        return (epoch, step), batch if self.prepare is None else self.prepare(batch)
