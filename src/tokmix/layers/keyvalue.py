"""The common part of attention-like mixers: projections to queries, keys and values, the cache, and masks."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import NORM, Cost, PreparedStep, State, in_place
from tokmix.core.product import product
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.layers import memory
from tokmix.layers.shortconv import Init, ShortConv
from tokmix.ops.hyper_mix import merge_heads, split_heads
from tokmix.ops.rotary import rotate


def visible(query_at: Tensor, keys: int, causal: bool, window: int | None, key_rows: Rows | None) -> Tensor | None:
    """Which keys (at positions 0, 1, ...) each query may read: bool, broadcastable to [B, H, L, keys]; None = all.
    query_at [L] or [B, L]. A row without any key may read all of them, so that nothing becomes NaN."""
    at, key_at = query_at[..., :, None], torch.arange(keys, device=query_at.device)
    allowed = None
    if causal:
        allowed = key_at <= at
    if window is not None:
        near = (at - key_at).abs() < window
        allowed = near if allowed is None else allowed & near
    if allowed is not None and allowed.dim() == 3:
        allowed = allowed[:, None]
    if key_rows is not None and not causal:  # in a causal row, padding comes later and is masked already
        there = (key_rows.mask | (key_rows.lengths == 0)[:, None])[:, None, None]
        allowed = there if allowed is None else allowed & there
    return allowed


class KeyValueMixer(RowMixer):
    """A subclass writes `read` (and `cost`). window: number of tokens that a token sees, itself included. qk_norm: queries and keys get an
    RMS norm for each head before they are rotated."""

    def __init__(
        self, dim: int, causal: bool, max_len: int, layer: int, *,
        heads: int, bias: bool, rotary: bool, window: int | None, conv: int, conv_init: Init, qk_norm: bool = False,
    ):  # fmt: skip
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        checks.divides("heads", heads, "dim", dim)
        if window is not None:
            checks.at_least("window", window, 1)
        checks.at_least("conv", conv, 0)
        if conv and not causal:
            raise ValueError(f"conv={conv} works with causal=True only: give conv=0")
        self.heads, self.rotary, self.window, self.conv = heads, rotary, window, conv
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        if conv:
            self.conv_k, self.conv_v = (ShortConv(dim, conv, conv_init) for _ in range(2))
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_gain, self.k_gain = (nn.Parameter(torch.ones(dim // heads)) for _ in range(2))

    @abstractmethod
    def read(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
        """q [B, H, L, e], k and v [B, H, N, e] -> [B, H, L, e]. allowed: mask of keys; causal=True means the
        plain triangle instead of a mask."""

    def _project(self, x: Tensor, keys: Tensor, values: Tensor, query_at: Tensor, key_at: Tensor, before: Tensor | None) -> list[Tensor]:
        if self.conv:
            keys, values = self.conv_k(keys, before), self.conv_v(values, before)
        q, k, v = (split_heads(p, self.heads) for p in (self.q(x), self.k(keys), self.v(values)))
        if self.qk_norm:
            q, k = (F.rms_norm(p, p.shape[-1:], w.to(p.dtype), 1e-6).to(v.dtype) for p, w in ((q, self.q_gain), (k, self.k_gain)))
        if self.rotary:
            turned = positions.turns(query_at, q.shape[-1], q.dtype)
            q = rotate(q, turned)
            k = rotate(k, turned if key_at is query_at else positions.turns(key_at, k.shape[-1], k.dtype))  # usually the same tokens
        return [q, k, v]

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        at = positions.count(x.shape[1], None, x.device)
        q, k, v = self._project(x, x, x, at, at, None)
        plain = self.causal and self.window is None
        allowed = None if plain else visible(at, x.shape[1], self.causal, self.window, rows)
        return self.out(merge_heads(self.read(q, k, v, allowed, plain)))

    def empty_state(self, batch: int, like: Tensor) -> State:
        slots = 0 if self.window is None else self.window - 1
        empty = like.new_zeros(batch, slots, self.heads, self.dim // self.heads)
        state = {"k": empty, "v": empty.clone(), "position": memory.start(batch, like)}
        if self.conv:
            state["last"] = like.new_zeros(batch, self.conv - 1, self.dim)
        return state

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        position, allowed = state["position"], in_place()
        start = None if allowed is None or rows is not None else allowed.position  # of all rows, known on the host
        at = positions.count(x.shape[1], position, x.device) if start is None else torch.arange(start, start + x.shape[1], device=x.device)
        q, k, v = self._project(x, x, x, at, at, state.get("last"))
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # caches are [B, N, H, e]
        after = {"position": position + memory.new_counts(x, rows)}
        plain, seen = False, None
        if self.window is None:
            keys = after["k"] = memory.append(state["k"], k, position)
            values = after["v"] = memory.append(state["v"], v, position)
            plain = start == 0 and keys.shape[1] == x.shape[1]
            alone = start is not None and x.shape[1] == 1 and keys.shape[1] == start + 1  # the last token sees all of them
            seen = None if plain or alone else visible(at, keys.shape[1], True, None, None)
        else:
            keys, values = (torch.cat([state[name], new], dim=1) for name, new in (("k", k), ("v", v)))
            after["k"], after["v"] = memory.recent(state["k"], k, rows), memory.recent(state["v"], v, rows)
            seen = self._windowed(x.shape[1], position)
        if self.conv:
            after["last"] = memory.recent(state["last"], x, rows)
        y = self.read(q, keys.transpose(1, 2), values.transpose(1, 2), seen, plain)
        return self.out(merge_heads(y)), after

    def prepared_step(self) -> PreparedStep | None:
        qkv, out = product(self.q, self.k, self.v), product(self.out)
        if qkv is None or out is None or self.window is not None or self.conv or self.qk_norm:
            return None

        def step(x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
            q, k, v = qkv(x).view(3, 1, 1, self.heads, -1).unbind()  # [1, 1, H, e]
            if self.rotary:
                at = torch.tensor([position])
                q, k = (positions.rotary(part.transpose(1, 2), at).transpose(1, 2) for part in (q, k))
            keys, values = memory.append(state["k"], k, state["position"]), memory.append(state["v"], v, state["position"])
            y = self.read(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), None, False)
            return out(y.view(-1)), {"position": state["position"] + 1, "k": keys, "v": values}

        return step

    def _windowed(self, length: int, position: Tensor) -> Tensor:
        """The mask if the last window - 1 tokens come before the new ones: [B, 1, L, window - 1 + L]."""
        assert self.window is not None
        back = self.window - 1
        query = torch.arange(length, device=position.device)[:, None] + back
        key = torch.arange(back + length, device=position.device)
        near = (key <= query) & (query - key < self.window)
        exists = key >= (back - position)[:, None]  # slots before the start of the sequence are empty
        return (near & exists[:, None])[:, None]

    def _state_size(self, length: int) -> int:
        if not self.causal:
            return 0
        slots = length if self.window is None else self.window - 1
        return 2 * slots * self.dim + 1 + (self.conv - 1) * self.dim * bool(self.conv)

    def _cost(self, length: int, per_score: int) -> Cost:
        """per_score: operations of the activation for one score."""
        projections, scores = 8 * length * self.dim**2, 4 * length**2 * self.dim
        pointwise = per_score * self.heads * length**2 + (4 * self.conv + 2 * NORM * self.qk_norm) * length * self.dim
        causal = projections + (scores * (length + 1) // (2 * length) if self.causal and length else scores)
        return Cost(projections + scores, pointwise, self._state_size(length), causal)

    def reach(self) -> int | None:
        return None if self.window is None else self.window - 1 + max(0, self.conv - 1)
