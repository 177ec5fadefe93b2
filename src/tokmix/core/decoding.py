"""The one decoding step that `tokmix.generate`, Hugging Face's generate, the play page and `bench decode` share.

CPU   caches are written in place, and after some tokens the weights are read from copies laid out column by column: a product with
      one token is bound by memory, and torch reads those a quarter faster.
CUDA  after some tokens the step is recorded once as a CUDA graph with buffers of its own, and replayed (capture.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from tokmix.core.capture import CapturedStep, CaptureError, Choose
from tokmix.core.mixer import State, inplace_states
from tokmix.core.model import Model, Watch
from tokmix.core.segments import Segments

WARM = 16  # tokens before something is prepared for the ones after them: short answers do not pay for it
LONG = 64  # so many tokens pay for it from the start
CHUNK = 512  # slots by which a cache of unknown length grows

log = logging.getLogger("tokmix")


class Decoder:
    """Steps of a model that change the state they are given.

    room    the most tokens that a row will have; 0: unknown, and then nothing is captured
    choose  the next ids from logits; on CUDA it becomes part of the graph
    tokens  how many steps of one token will follow, where known
    """

    def __init__(self, model: Model, room: int = 0, choose: Choose | None = None, tokens: int = 0):
        self.model, self.room, self.choose, self.capture = model, room, choose, room > 0
        self.warm = 0 if tokens >= LONG else WARM
        self.seen = 0  # steps of one token
        self.columns: ColumnWeights | None = None
        self.captured: CapturedStep | None = None

    def read(
        self, ids: Tensor, state: State, segments: Segments | None = None, *, position: int | None = None, last: bool = True
    ) -> tuple[Tensor, State]:
        """Any number of tokens, such as a prompt: ids [B, T] -> (logits, new state). Logits are [B, 1, vocab], of each row's last
        token, or [B, T, vocab] where last=False. position: where all rows stand, if that is one number."""
        with torch.no_grad(), inplace_states(position=None if segments is not None else position, room=self.room):
            return self.model.step(ids, state, segments, last=last)

    def advance(
        self, ids: Tensor, state: State, segments: Segments | None = None, *, position: int | None = None, watch: Watch | None = None
    ) -> tuple[Tensor, State]:
        """As `Model.advance`: ids [B, T] -> (normed x [B, T, D], which the head reads, new state)."""
        if ids.shape[1] != 1 or ids.dim() != 2 or segments is not None or watch is not None:
            with torch.no_grad(), inplace_states(position=None if segments is not None else position, room=self.room):
                return self.model.advance(ids, state, segments, watch=watch)
        captured = self._captured(ids, state)
        if captured is not None:
            state = captured(ids, state)
            return captured.x.clone(), state
        with self._eager(ids, position):
            return self.model.advance(ids, state)

    def next(self, ids: Tensor, state: State, *, position: int | None = None) -> tuple[Tensor, State]:
        """One token a row, then `choose`: ids [B, 1] -> (the ids [B] that follow, new state)."""
        assert self.choose is not None
        captured = self._captured(ids, state)
        if captured is not None:
            state = captured(ids, state)
            return captured.chosen.clone(), state
        with self._eager(ids, position):
            logits, state = self.model.step(ids, state)
        return self.choose(logits[:, -1]), state

    @contextmanager
    def _eager(self, ids: Tensor, position: int | None) -> Iterator[None]:
        """Around one token a row that is not captured."""
        self.seen += 1
        weights: AbstractContextManager[None] = nullcontext()
        if not ids.is_cuda and ids.shape[0] == 1 and self.seen > self.warm:
            self.columns = self.columns or ColumnWeights(self.model)
            weights = self.columns.used()
        with torch.no_grad(), inplace_states(position=position, room=self.room), weights:
            yield

    def make_room(self, tokens: int) -> None:
        """For a caller that does not know how long rows will get: at least so many tokens, in steps of CHUNK."""
        if tokens > self.room:
            self.room, self.captured, self.capture = -(-tokens // CHUNK) * CHUNK, None, True

    def _captured(self, ids: Tensor, state: State) -> CapturedStep | None:
        if not ids.is_cuda or not self.capture or self.seen < self.warm:
            return None
        if self.captured is None or not self.captured.fits(ids, state):
            try:
                self.captured = CapturedStep(self.model, ids, state, self.room, self.choose)
            except CaptureError as error:
                log.info("decoding stays eager: %s", error)
                self.capture = False
                return None
        return self.captured


class ColumnWeights:
    """Copies of a model's linear weights in column order, put in place of the weights for the time of a step."""

    def __init__(self, model: Model):
        weights = [model.embedding.weight] if isinstance(model.head, nn.Identity) else []
        weights += [module.weight for module in model.modules() if type(module) is nn.Linear]
        floats = (torch.float32, torch.float64)
        plain = [weight for weight in weights if type(weight) is nn.Parameter and weight.dtype in floats and weight.device.type == "cpu"]
        with torch.no_grad():
            self.swaps = [(weight, weight.data, weight.data.t().contiguous().t()) for weight in plain]

    @contextmanager
    def used(self) -> Iterator[None]:
        try:
            for weight, _, column in self.swaps:
                weight.data = column
            yield
        finally:
            for weight, row, _ in self.swaps:
                weight.data = row
