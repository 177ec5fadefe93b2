"""Concurrent rows computed together. While one batch is computed the next rows gather, so nobody waits for a batch to fill."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple

from tokmix.core.optional import np
from tokmix.runtime.model import Answer, TextModel


class Full(Exception):
    """The queue has no room."""


class Closed(Exception):
    """The server is about to end."""


class Found(NamedTuple):
    """What the model says of one row."""

    answer: Answer | None  # None of a model that only embeds
    vector: np.ndarray  # [D]
    cut: bool  # whether the text was cut to the model's length
    tokens: int


@dataclass
class Job:
    rows: list[tuple[str, ...]]
    answer: asyncio.Future[list[Found]]
    loop: asyncio.AbstractEventLoop


class Batcher:
    """most_rows: of one batch; queue_rows: that may wait; seen: told of the size of every batch."""

    def __init__(self, model: TextModel, most_rows: int, queue_rows: int, seen: Callable[[int], None] = lambda rows: None):
        self.model, self.most_rows, self.queue_rows, self.seen = model, most_rows, queue_rows, seen
        self.jobs: deque[Job] = deque()
        self.waiting = 0
        self.open, self.ready = True, threading.Condition()
        self.thread = threading.Thread(target=self._work, name="tokmix-batches", daemon=True)
        self.thread.start()

    def submit(self, rows: list[tuple[str, ...]]) -> asyncio.Future[list[Found]]:
        loop = asyncio.get_running_loop()
        job = Job(rows, loop.create_future(), loop)
        with self.ready:
            if not self.open:
                raise Closed
            if self.jobs and self.waiting + len(rows) > self.queue_rows:  # one request always fits, or it never would
                raise Full
            self.jobs.append(job)
            self.waiting += len(rows)
            self.ready.notify()
        return job.answer

    def close(self) -> None:
        """Finish what waits, then end."""
        with self.ready:
            self.open = False
            self.ready.notify()
        self.thread.join()

    def _work(self) -> None:
        while batch := self._next():
            batch = [job for job in batch if not job.answer.done()]
            if not batch:
                continue
            rows = [row for job in batch for row in job.rows]
            self.seen(len(rows))
            try:
                found = self.model.run(rows)
                said = repeat(None) if found.outputs is None else self.model.said(found.outputs)
                each = map(Found, said, found.pooled, found.cut, found.tokens)
                answers: list[tuple[Job, list[Found] | Exception]] = [(job, list(islice(each, len(job.rows)))) for job in batch]
            except Exception as error:  # the thread serves everyone: what one batch meets must not end it
                answers = [(job, error) for job in batch]
            batch[0].loop.call_soon_threadsafe(_settle, answers)

    def _next(self) -> list[Job]:
        with self.ready:
            while not self.jobs and self.open:
                self.ready.wait()
            batch: list[Job] = []
            rows = 0
            while self.jobs and (not batch or rows + len(self.jobs[0].rows) <= self.most_rows):
                job = self.jobs.popleft()
                rows += len(job.rows)
                batch.append(job)
            self.waiting -= rows
            return batch


def _settle(answers: list[tuple[Job, list[Found] | Exception]]) -> None:
    """One wake-up of the event loop for a whole batch."""
    for job, found in answers:
        if job.answer.done():  # its reader has gone
            continue
        if isinstance(found, Exception):
            job.answer.set_exception(found)
        else:
            job.answer.set_result(found)
