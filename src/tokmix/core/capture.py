"""A decoding step as a CUDA graph: recorded once with its own buffers, then replayed for every token.

ids ──copy──> [ids buffer] ─┐
                            ├─ graph: Model.advance in place ─> [x buffer] ─ head, choose ─> [next ids buffer]
[state buffers, caches of fixed size] <─ state that is not written in place is copied back, inside the graph
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tokmix.core.mixer import State, inplace_states
from tokmix.core.model import Model


class CaptureError(Exception):
    """A step cannot be recorded; the message says why in one line."""


class Choose(Protocol):
    """Computes ids [B] from logits [B, vocab], on their device; `buffers` are the tensors that a call changes."""

    def __call__(self, logits: Tensor) -> Tensor: ...

    def buffers(self) -> list[Tensor]: ...


class Graph(Protocol):
    def replay(self) -> None: ...


def record(body: Callable[[], None], reset: Callable[[], None]) -> Graph:
    """A CUDA graph of body, which first runs twice on a side stream, as capture requires; `reset` undoes the changes of a run."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            body()
            reset()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def with_slots(state: State, after: State, slots: int) -> State:
    """Copies of a state's tensors; those that a step makes longer, [B, N, ...] -> [B, N + 1, ...], get so many slots. A cache that
    already has them, such as one of an earlier capture, has free slots after its rows' positions."""
    leaves, spec = tree_flatten(state)
    later = tree_leaves(after)
    if len(later) != len(leaves):
        raise CaptureError("a step changes the structure of its state")
    return tree_unflatten([_copy(leaf, new, slots) for leaf, new in zip(leaves, later, strict=True)], spec)


def _copy(leaf: Tensor, after: Tensor, slots: int) -> Tensor:
    if leaf.shape == after.shape:
        return leaf.clone()
    if leaf.dim() < 2 or after.shape != (leaf.shape[0], leaf.shape[1] + 1, *leaf.shape[2:]) or slots < leaf.shape[1]:
        raise CaptureError(f"a state of shape {list(leaf.shape)} becomes one of {list(after.shape)}")
    if leaf.dim() == 4:  # heads before slots in memory, the order that attention reads fastest
        grown = leaf.new_zeros(leaf.shape[0], leaf.shape[2], slots, leaf.shape[3]).transpose(1, 2)
    else:
        grown = leaf.new_zeros(leaf.shape[0], slots, *leaf.shape[2:])
    grown[:, : leaf.shape[1]] = leaf
    return grown


class CapturedStep:
    """Model.advance of one token in each row, then the head and `choose`, if given. It always returns the same buffers as the state."""

    def __init__(self, model: Model, ids: Tensor, state: State, slots: int, choose: Choose | None = None):
        self.model, self.choose = model, choose
        with torch.no_grad():
            _, after = model.advance(ids, state)  # not in place, to see which caches grow
            self.ids, self.state = ids.clone(), with_slots(state, after, slots)
            self.leaves = tree_leaves(self.state)
            self._kept = [leaf.clone() for leaf in self._changed()]
            try:
                self.graph = record(self._body, self._reset)
            except (RuntimeError, ValueError) as error:
                raise CaptureError(" ".join(str(error).split())[:160]) from error
            finally:
                self._reset()  # the runs before the capture must change nothing, also if it fails
                del self._kept

    def _changed(self) -> list[Tensor]:
        return [*self.leaves, *(self.choose.buffers() if self.choose is not None else [])]

    def _reset(self) -> None:
        for leaf, before in zip(self._changed(), self._kept, strict=True):
            leaf.copy_(before)

    def _body(self) -> None:
        with inplace_states(fixed=True):
            self.x, after = self.model.advance(self.ids, self.state)
        later = tree_leaves(after)
        if [leaf.shape for leaf in later] != [leaf.shape for leaf in self.leaves]:
            raise CaptureError("a step changes the shape of its state")
        for leaf, new in zip(self.leaves, later, strict=True):
            if leaf.data_ptr() != new.data_ptr():
                leaf.copy_(new)
        if self.choose is not None:
            self.chosen = self.choose(self.model.finish(self.x)[:, -1])

    def fits(self, ids: Tensor, state: State) -> bool:
        """Whether this graph can continue that state: its own buffers, or others of the same shapes (as after a reordering)."""
        if ids.shape != self.ids.shape or ids.device != self.ids.device:
            return False
        return [leaf.shape for leaf in tree_leaves(state)] == [leaf.shape for leaf in self.leaves]

    @torch.no_grad()
    def __call__(self, ids: Tensor, state: State) -> State:
        """The results are in `x` [B, 1, D], the input of the head, and `chosen` [B], until the next call."""
        self.ids.copy_(ids)
        if state is not self.state:
            for buffer, leaf in zip(self.leaves, tree_leaves(state), strict=True):
                if buffer.data_ptr() != leaf.data_ptr():
                    buffer.copy_(leaf)
        self.graph.replay()
        return self.state
