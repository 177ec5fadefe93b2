"""Speculative decoding: a small draft model proposes tokens, and one pass of the model checks them all. The result is that of greedy
decoding for any draft.

    input   │ pending   last │ d1  d2  d3  d4        pending: accepted tokens that are not in the model's state yet
    output  │             t0   t1  t2  t3  t4        d1 = t0, d2 = t1, d3 ≠ t2: t0, t1, t2 are new

In general a mixer's state cannot be shortened. So the model's state is replaced only if every proposal of every row was right.
Otherwise the next pass reads the accepted tokens again, together with the next proposals: a pass of ten tokens costs little more than
one of five. The draft keeps its state after each of its tokens, and each row continues from the last right one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.segments import pad

PENDING = 16  # the most tokens that are read again


@dataclass
class Row:
    """A row of the batch: `last` is accepted, but not read by either model; `done` counts new tokens."""

    number: int
    last: int
    done: int = 1
    pending: list[int] = field(default_factory=list)


def check(model: Model, draft: Model, prompts: list[list[int]], max_new: int, temperature: float) -> None:
    if temperature != 0:
        raise ValueError(f"temperature={temperature}: a draft model works only with temperature=0")
    if draft.config.head != "lm":
        raise ValueError(f"the draft model needs head='lm', not {draft.config.head!r}")
    if draft.config.vocab != model.config.vocab:
        raise ValueError(f"the draft model has a vocabulary of {draft.config.vocab}, and the model one of {model.config.vocab}")
    longest = max(map(len, prompts), default=0) + max_new
    if draft.limit is not None and longest > draft.limit:
        raise ValueError(f"prompts and max_new={max_new} take up to {longest} tokens, and the draft model takes {draft.limit}")


class Speculation:
    """max_new, min_new, stop: as in `generate`; count: proposals in each round."""

    def __init__(self, model: Model, draft: Model, max_new: int, min_new: int, stop: tuple[int, ...], count: int):
        self.model, self.draft, self.count = model, draft, count
        self.max_new, self.min_new, self.stop = max_new, min_new, stop
        self.rounds = self.accepted = 0

    def tokens(self, prompts: list[list[int]]) -> Iterator[tuple[int, int]]:
        """(row, id) for each new token."""
        training = [(model, model.training) for model in (self.model, self.draft)]
        self.model.eval()
        self.draft.eval()
        try:
            with torch.inference_mode():
                first = self._prefill(prompts)
            yield from ((row.number, row.last) for row in first)
            with torch.inference_mode():
                self._drop(first)
            while self.rows:
                with torch.inference_mode():
                    new = self._round()
                yield from new
        finally:
            for model, was in training:
                model.train(was)

    def _prefill(self, prompts: list[list[int]]) -> list[Row]:
        ids, segments = pad(prompts, self.model.device)
        logits, self.state = self.model.step(ids, self.model.init_state(len(prompts)), segments, last=True)
        _, self.draft_state = self.draft.advance(ids.to(self.draft.device), self.draft.init_state(len(prompts)), segments)
        chosen = self._greedy(logits, [0] * len(prompts))[:, 0].tolist()
        self.rows = [Row(number, token) for number, token in enumerate(chosen)]
        return self.rows

    def _drop(self, rows: list[Row]) -> None:
        """Remove finished rows from the batch."""
        alive = [at for at, row in enumerate(rows) if row.last not in self.stop and row.done < self.max_new]
        if len(alive) < len(rows):
            take = lambda leaf: leaf.index_select(0, torch.tensor(alive, dtype=torch.long, device=leaf.device))
            self.state, self.draft_state = tree_map(take, self.state), tree_map(take, self.draft_state)
        self.rows = [rows[at] for at in alive]

    def _round(self) -> list[tuple[int, int]]:
        count = min(self.count, *(self.max_new - row.done - 1 for row in self.rows)) if self.count else 0
        proposed, kept = self._propose(count)
        verified, after = self._verify(proposed, count)
        new, accepted = [], []
        for row, drafted, greedy in zip(self.rows, proposed, verified, strict=True):
            right = next((i for i in range(count) if drafted[i] != greedy[i]), count)
            accepted.append(right)
            row.pending += [row.last, *drafted[:right]]
            for token in greedy[: right + 1]:
                new.append((row.number, token))
                row.last, row.done = token, row.done + 1
                if token in self.stop or row.done == self.max_new:
                    break
        self.rounds, self.accepted = self.rounds + 1, self.accepted + sum(accepted)
        self.draft_state = _picked(kept, torch.tensor(accepted))
        if all(right == count for right in accepted):
            self.state = after
            for row in self.rows:
                row.pending = []
        self._drop(self.rows)
        self._read_pending()
        return new

    def _propose(self, count: int) -> tuple[list[list[int]], list[State]]:
        """The ids that the draft proposes, a list for each row, and its states after the last accepted token and after each proposal."""
        state, ids = self.draft_state, torch.tensor([[row.last] for row in self.rows], device=self.draft.device)
        proposed, kept = [], []
        for at in range(count + 1):
            logits, state = self.draft.step(ids, state)  # not in place, since all states are kept
            kept.append(state)
            if at < count:
                ids = self._greedy(logits, [row.done + at for row in self.rows])
                proposed.append(ids[:, 0])
        return torch.stack(proposed, dim=1).tolist() if proposed else [[] for _ in self.rows], kept

    def _verify(self, proposed: list[list[int]], count: int) -> tuple[list[list[int]], State]:
        """The model's greedy ids after the last accepted token and after each proposal, and its state after all of them."""
        rows = [[*row.pending, row.last, *drafted] for row, drafted in zip(self.rows, proposed, strict=True)]
        ids, segments = pad(rows, self.model.device)
        x, after = self.model.advance(ids, self.state, segments)
        starts = torch.tensor([len(row.pending) for row in self.rows], device=x.device)
        columns = starts[:, None] + torch.arange(count + 1, device=x.device)
        x = x.gather(1, columns[..., None].expand(-1, -1, x.shape[2]))
        return self._greedy(self.model.finish(x), [row.done for row in self.rows]).tolist(), after

    def _greedy(self, logits: Tensor, done: list[int]) -> Tensor:
        """logits [B, T, vocab] of the tokens number done, done + 1, ... -> [B, T]"""
        if self.stop and min(done) < self.min_new:
            number = torch.tensor(done)[:, None] + torch.arange(logits.shape[1])
            early = (number < self.min_new).to(logits.device)[..., None]
            without_stop = logits.index_fill(2, torch.tensor(self.stop, device=logits.device), -torch.inf)
            logits = torch.where(early, without_stop, logits)
        return logits.argmax(-1)

    def _read_pending(self) -> None:
        if any(len(row.pending) > PENDING for row in self.rows):
            ids, segments = pad([row.pending for row in self.rows], self.model.device)
            _, self.state = self.model.advance(ids, self.state, segments)
            for row in self.rows:
                row.pending = []


def _picked(states: list[State], which: Tensor) -> State:
    """The state number which[row] of each row. A growing cache keeps all slots of the longest state: slots from a row's position on
    are not read."""
    leaves = [tree_leaves(state) for state in states]
    spec = tree_flatten(states[0])[1]

    def pick(parts: tuple[Tensor, ...]) -> Tensor:
        if parts[0].shape != parts[-1].shape:
            return parts[-1]
        which_here = which.to(parts[0].device)
        return torch.stack(parts)[which_here, torch.arange(len(which), device=parts[0].device)]

    return tree_unflatten([pick(parts) for parts in zip(*leaves, strict=True)], spec)
