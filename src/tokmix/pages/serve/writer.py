"""Texts being written, as rows of one batch: they join and leave between steps, and their states are rows of the same arrays.

    waiting --> reading (the prompt, a piece at a time) --> writing (a token a step) --> gone

What else is in the batch never changes a text: each row has its own position, state and random stream.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tokmix.core.optional import np
from tokmix.pages.serve.batcher import Closed, Full
from tokmix.runtime import states
from tokmix.runtime.model import TextModel
from tokmix.runtime.sampling import Sampling, choose

PIECE = 128  # tokens of a prompt read between two steps of the others


@dataclass
class Row:
    """A text. `tokens` gives its ids one by one, then None; or an exception."""

    prompt: list[int]
    room: int  # new tokens at most
    sampling: Sampling
    loop: asyncio.AbstractEventLoop
    tokens: asyncio.Queue[int | Exception | None] = field(default_factory=asyncio.Queue)
    gone: bool = False  # its reader has left
    read: int = 0
    last: int = 0
    made: int = 0
    ended: bool = False  # by end-of-text, not for want of room

    def __post_init__(self) -> None:
        self.draws = np.random.default_rng(self.sampling.seed)

    def tell(self, token: int | Exception | None) -> None:
        self.loop.call_soon_threadsafe(self.tokens.put_nowait, token)


class Writer:
    """most_rows: written at once; queue_rows: that may wait; seen: told of the rows of every step."""

    def __init__(self, model: TextModel, most_rows: int, queue_rows: int, seen: Callable[[int], None] = lambda rows: None):
        self.model, self.most_rows, self.queue_rows, self.seen = model, most_rows, queue_rows, seen
        self.specs, self.end = model.about.states, model.about.roles["eot"]
        self.waiting: deque[Row] = deque()
        self.reading: list[Row] = []
        self.writing: list[Row] = []
        self.reading_state, self.writing_state = model.empty_state(0), model.empty_state(0)
        self.open, self.ready = True, threading.Condition()
        self.thread = threading.Thread(target=self._work, name="tokmix-writer", daemon=True)
        self.thread.start()

    def submit(self, prompt: list[int], room: int, sampling: Sampling) -> Row:
        row = Row(prompt, room, sampling, asyncio.get_running_loop())
        with self.ready:
            if not self.open:
                raise Closed
            if len(self.waiting) >= self.queue_rows:
                raise Full
            self.waiting.append(row)
            self.ready.notify()
        return row

    def close(self) -> None:
        """Finish what is being written, then end."""
        with self.ready:
            self.open = False
            self.ready.notify()
        self.thread.join()

    def _work(self) -> None:
        while self._admit():
            try:
                self._leave_gone()
                if self.reading:
                    self._read()
                if self.writing:
                    self._write()
            except Exception as error:  # the thread serves everyone: it goes on with an empty batch
                for row in self.reading + self.writing:
                    row.tell(error)
                self.reading, self.writing = [], []
                self.reading_state, self.writing_state = self.model.empty_state(0), self.model.empty_state(0)

    def _admit(self) -> bool:
        """Take in what there is room for; False at the end."""
        with self.ready:
            while self.open and not (self.waiting or self.reading or self.writing):
                self.ready.wait()
            room = self.most_rows - len(self.reading) - len(self.writing)
            new = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
        if new:
            self.reading += new
            self.reading_state = states.join(self.specs, [self.reading_state, self.model.empty_state(len(new))])
        return bool(self.reading or self.writing or self.waiting)

    def _leave_gone(self) -> None:
        if any(row.gone for row in self.reading):
            self._keep_reading([i for i, row in enumerate(self.reading) if not row.gone])
        if any(row.gone for row in self.writing):
            self._keep_writing([i for i, row in enumerate(self.writing) if not row.gone])

    def _keep_reading(self, kept: list[int]) -> None:
        self.reading, self.reading_state = [self.reading[i] for i in kept], states.take(self.reading_state, kept)

    def _keep_writing(self, kept: list[int]) -> None:
        self.writing, self.writing_state = [self.writing[i] for i in kept], states.take(self.writing_state, kept)

    def _read(self) -> None:
        """The next piece of each prompt; rows that have read theirs begin to write."""
        piece = self.model.about.chunk or PIECE
        logits, state = self.model.step([row.prompt[row.read : row.read + piece] for row in self.reading], self.reading_state)
        for row in self.reading:
            row.read += piece
        begun = [i for i, row in enumerate(self.reading) if row.read >= len(row.prompt)]
        if begun:
            moved = [i for i in begun if self._emit(self.reading[i], logits[i])]
            if moved:
                self.writing_state = states.join(self.specs, [self.writing_state, states.take(state, moved)])
                self.writing += [self.reading[i] for i in moved]
        self.reading_state = state
        self._keep_reading([i for i, row in enumerate(self.reading) if row.read < len(row.prompt)])

    def _write(self) -> None:
        """One token of every text."""
        self.seen(len(self.writing))
        logits, self.writing_state = self.model.step([[row.last] for row in self.writing], self.writing_state)
        kept = [i for i, row in enumerate(self.writing) if self._emit(row, logits[i])]
        if len(kept) < len(self.writing):
            self._keep_writing(kept)

    def _emit(self, row: Row, logits: np.ndarray) -> bool:
        """Choose a row's next token and hand it over -> whether the row goes on."""
        token = choose(logits, row.sampling, row.draws)
        row.ended = token == self.end
        if not row.ended:
            row.last, row.made = token, row.made + 1
            row.tell(token)
        if row.ended or row.made >= row.room:
            row.tell(None)
            return False
        return True
