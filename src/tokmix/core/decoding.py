"""The decoding step that `tokmix.generate`, Hugging Face's generate, the play page and `bench decode` share.

CPU   caches are written in place; after some tokens of a single row, prepared layers are used (one_row.py).
CUDA  after some tokens the step is recorded as a CUDA graph with its own buffers, and then replayed (capture.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from tokmix.core.capture import CapturedStep, CaptureError, Choose
from tokmix.core.mixer import State, inplace_states
from tokmix.core.model import Model, Watch
from tokmix.core.one_row import OneRow
from tokmix.core.segments import Segments

WARM = 16  # tokens before the first preparation or recording: it takes longer than it saves in a short answer
LONG = 64  # from this number of expected tokens on, prepare at the start
CHUNK = 512  # slots by which a cache of unknown length grows

log = logging.getLogger("tokmix")
records: Callable[[Tensor], bool] = lambda ids: ids.is_cuda


class Decoder:
    """Steps of a model that change the given state in place.

    room    the most tokens that a row will have; 0: unknown, and no graph is recorded
    choose  computes the next ids from logits; on CUDA it becomes part of the graph
    tokens  how many steps of one token will follow; 0: unknown
    """

    def __init__(self, model: Model, room: int = 0, choose: Choose | None = None, tokens: int = 0):
        self.model, self.room, self.choose, self.capture = model, room, choose, room > 0
        self.warm = 0 if tokens >= LONG else WARM
        self.seen = 0  # steps of one token
        self.row: OneRow | None = None
        self.may_prepare = True
        self.captured: CapturedStep | None = None

    def read(
        self, ids: Tensor, state: State, segments: Segments | None = None, *, position: int | None = None, last: bool = True
    ) -> tuple[Tensor, State]:
        """Any number of tokens, such as a prompt: ids [B, T] -> (logits, new state). Logits are [B, 1, vocab], of each row's last
        token, or [B, T, vocab] with last=False. position: that of all rows, if they have the same."""
        with torch.no_grad(), inplace_states(position=None if segments is not None else position, room=self.room):
            return self.model.step(ids, state, segments, last=last)

    def advance(
        self, ids: Tensor, state: State, segments: Segments | None = None, *, position: int | None = None, watch: Watch | None = None
    ) -> tuple[Tensor, State]:
        """As `Model.advance`: ids [B, T] -> (normed x [B, T, D], new state)."""
        if ids.shape[1] != 1 or ids.dim() != 2 or segments is not None or watch is not None:
            with torch.no_grad(), inplace_states(position=None if segments is not None else position, room=self.room):
                return self.model.advance(ids, state, segments, watch=watch)
        captured, state = self._captured(ids, state)
        if captured is not None:
            state = captured(ids, state)
            return captured.x.clone(), state
        row, position = self._one_row(ids, state, position)
        with torch.no_grad(), inplace_states(position=position, room=self.room):
            if row is None or position is None:
                return self.model.advance(ids, state)
            x, state = row.hidden(ids, state, position)
            return x[None, None], state

    def next(self, ids: Tensor, state: State, *, position: int | None = None) -> tuple[Tensor, State]:
        """One token a row, then `choose`: ids [B, 1] -> (the ids [B] that follow, new state)."""
        assert self.choose is not None
        captured, state = self._captured(ids, state)
        if captured is not None:
            state = captured(ids, state)
            return captured.chosen.clone(), state
        row, position = self._one_row(ids, state, position)
        with torch.no_grad(), inplace_states(position=position, room=self.room):
            if row is None or position is None:
                logits, state = self.model.step(ids, state)
                return self.choose(logits[:, -1]), state
            x, state = row.hidden(ids, state, position)
            return self.choose(row.logits(x)), state

    def _one_row(self, ids: Tensor, state: State, position: int | None) -> tuple[OneRow | None, int | None]:
        """The prepared layers for a step that is not captured, if any, and the position of its row."""
        self.seen += 1
        if ids.shape[0] != 1 or ids.is_cuda or self.seen <= self.warm:
            return None, position
        if self.row is None and self.may_prepare:
            self.may_prepare = OneRow.fits(self.model)
            self.row = OneRow(self.model) if self.may_prepare else None
        return self.row, int(state["position"]) if position is None else position

    def make_room(self, tokens: int) -> None:
        """For callers that do not know the final length of rows: room for at least so many tokens, in steps of CHUNK."""
        if tokens > self.room:
            self.room, self.captured, self.capture = -(-tokens // CHUNK) * CHUNK, None, True

    def _captured(self, ids: Tensor, state: State) -> tuple[CapturedStep | None, State]:
        """The recorded step, if any, and the state that it continues: its own buffers where it was recorded with this state."""
        if not records(ids) or not self.capture or self.seen < self.warm:
            return None, state
        if self.captured is None or not self.captured.fits(ids, state):
            try:
                self.captured = CapturedStep(self.model, ids, state, self.room, self.choose)
            except CaptureError as error:
                log.info("decoding stays eager: %s", error)
                self.capture = False
                return None, state
            return self.captured, self.captured.state
        return self.captured, state
