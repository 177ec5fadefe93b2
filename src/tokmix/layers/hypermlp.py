"""HyperMLP and HyperGLU (Lu & Yang 2026, arXiv 2602.12601): an attention head as a two-layer MLP made from the context.

    x ──conv──> k, v        x ──> q ⊙ left gate
    z = q·k ──R1──> h ──ReLU(h/‖h‖)──> a ──R2──> w ──·v──> o ⊙ right gate ──out──> y

R1 and R2 mix over lags (newest first), with weights that depend on the token. Quadratic in length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import SIGMOID, Cost, State, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.layers import memory
from tokmix.layers.shortconv import Init, ShortConv
from tokmix.ops.hyper_mix import merge_heads, split_heads
from tokmix.ops.hyper_mlp import Bank, hyper_mlp, matmul_flops


class SequenceMixer(nn.Module):
    """The parameters of R: banks indexed by lag, and the control that each token sets."""

    def __init__(self, dim: int, heads: int, max_len: int, rank: int):
        super().__init__()
        self.down = nn.Parameter(torch.empty(heads, max_len, rank).normal_(std=0.02))
        self.up = nn.Parameter(torch.empty(heads, rank, max_len).normal_(std=0.02))
        self.diagonal = nn.Parameter(torch.zeros(heads, max_len))
        self.control = nn.Linear(dim, heads * rank)
        self.heads = heads

    def forward(self, x: Tensor) -> Bank:
        return Bank(self.down, self.up, self.diagonal, split_heads(self.control(x).sigmoid(), self.heads))


@register("hypermlp")
class HyperMLP(RowMixer):
    """heads   2 in the paper
    rank    of the sequence mixers
    qk      total width of queries and keys (default: dim / 4); vo: of values (default: dim)
    conv    taps of the convolutions that feed keys and values; 0 = none
    conv_init  delta: the convolutions start as the identity; normal: with small random weights
    gates   the token's own gates on the queries and on the output
    r1, r2  mix over the sequence before, and after, the activation
    lag     index that mixing by lag, not by absolute position
    rotary  rotate queries and keys by their position
    """

    modes = frozenset({"causal", "padded", "packed", "step"})
    order = "T^2"
    branches = 1  # sets of scores per head

    def __init__(
        self,
        dim: int,
        *,
        causal: bool,
        max_len: int,
        layer: int = 0,
        heads: int = 2,
        rank: int = 16,
        qk: int | None = None,
        vo: int | None = None,
        conv: int = 4,
        conv_init: Init = "delta",
        gates: bool = True,
        r1: bool = True,
        r2: bool = True,
        lag: bool = True,
        rotary: bool = False,
    ):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        checks.at_least("heads", heads, 1)
        self.heads, self.score_heads = heads, heads * self.branches
        # A quarter of the width, rounded so that every head gets a whole share.
        self.qk = qk if qk is not None else max(1, round(dim / 4 / self.score_heads)) * self.score_heads
        self.vo = vo if vo is not None else dim
        checks.divides("heads (of scores)", self.score_heads, "qk", self.qk)
        checks.divides("heads", heads, "vo", self.vo)
        checks.at_least("rank", rank, 1)
        checks.at_least("conv", conv, 0)
        self.rank, self.conv, self.gates, self.lag, self.rotary = rank, conv, gates, lag, rotary
        self.q, self.k = (nn.Linear(dim, self.qk, bias=False) for _ in range(2))
        self.v, self.out = nn.Linear(dim, self.vo, bias=False), nn.Linear(self.vo, dim, bias=False)
        if conv:
            self.conv_k, self.conv_v = (ShortConv(dim, conv, conv_init) for _ in range(2))
        if gates:
            self.left_gate, self.right_gate = nn.Linear(dim, self.qk), nn.Linear(dim, self.vo)
        self.r1 = SequenceMixer(dim, self.score_heads, max_len, rank) if r1 else None
        self.r2 = SequenceMixer(dim, heads, max_len, rank) if r2 else None

    @property
    def limit(self) -> int | None:
        return self.max_len if self.r1 is not None or self.r2 is not None else None

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        at = positions.count(x.shape[1], None, x.device)[None]
        k, v = self._keys_values(x, at, None)
        q, first, second = self._queries(x, at)
        limit = x.shape[1] if self.limit is None else self.limit
        return self._finish(x, hyper_mlp(q, k.transpose(1, 2), v.transpose(1, 2), None, first, second, self.lag, limit))

    def _keys_values(self, x: Tensor, at: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, L, Hq, e] and [B, L, H, f]"""
        fed_k, fed_v = (self.conv_k(x, before), self.conv_v(x, before)) if self.conv else (x, x)
        k = self.k(fed_k).unflatten(-1, (self.score_heads, -1))
        if self.rotary:
            k = positions.rotary(k.transpose(1, 2), at).transpose(1, 2)
        return k, self.v(fed_v).unflatten(-1, (self.heads, -1))

    def _read(self, x: Tensor, at: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Tokens x at positions `at` read the keys and values of all positions so far."""
        q, first, second = self._queries(x, at)
        limit = k.shape[1] if self.limit is None else self.limit
        return self._finish(x, hyper_mlp(q, k.transpose(1, 2), v.transpose(1, 2), at, first, second, self.lag, limit))

    def _queries(self, x: Tensor, at: Tensor) -> tuple[Tensor, Bank | None, Bank | None]:
        """Gated queries [B, Hq, L, e], and the banks of both sequence mixers."""
        q = split_heads(self.q(x), self.score_heads)
        if self.rotary:  # before the gate, as the authors do
            q = positions.rotary(q, at)
        if self.gates:
            q = q * split_heads(self.left_gate(x).sigmoid(), self.score_heads)
        return q, None if self.r1 is None else self.r1(x), None if self.r2 is None else self.r2(x)

    def _finish(self, x: Tensor, o: Tensor) -> Tensor:
        """o [B, H, L, f] -> [B, L, D]"""
        o = merge_heads(o)
        if self.gates:
            o = o * self.right_gate(x).sigmoid()
        return self.out(o)

    def empty_state(self, batch: int, like: Tensor) -> State:
        state = {
            "k": like.new_zeros(batch, 0, self.score_heads, self.qk // self.score_heads),
            "v": like.new_zeros(batch, 0, self.heads, self.vo // self.heads),
            "position": memory.start(batch, like),
        }
        if self.conv:
            state["last"] = like.new_zeros(batch, self.conv - 1, self.dim)
        return state

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        position, counts = state["position"], memory.new_counts(x, rows)
        if self.limit is not None:
            memory.check_room(self.kind, self.limit, position, counts, bound=state["k"].shape[1] + x.shape[1])
        at = positions.count(x.shape[1], position, x.device)
        k, v = self._keys_values(x, at, state.get("last"))
        after = {"position": position + counts, "k": memory.append(state["k"], k, position), "v": memory.append(state["v"], v, position)}
        if self.conv:
            after["last"] = memory.recent(state["last"], x, rows)
        return self._read(x, at, after["k"], after["v"]), after

    def cost(self, length: int) -> Cost:
        d, ranks = self.dim, (self.rank * (self.r1 is not None), self.rank * (self.r2 is not None))
        widths = 2 * self.qk + 2 * self.vo + (self.qk + self.vo if self.gates else 0)
        widths += ranks[0] * self.score_heads + ranks[1] * self.heads
        share = (self.score_heads, self.heads, self.qk // self.score_heads, self.vo // self.heads)
        scores = matmul_flops(length, length, *share, *ranks)
        gates = SIGMOID * (widths - 2 * self.qk - 2 * self.vo)
        pointwise = length * (gates + 4 * self.conv * d) + length**2 * (6 * self.score_heads + 3 * self.heads)
        state = length * (self.qk + self.vo) + 1 + max(0, self.conv - 1) * d
        projections = 2 * length * d * widths
        return Cost(projections + scores, pointwise, state, projections + (scores * (length + 1) // (2 * length) if length else 0))


@register("hyperglu")
class HyperGLU(HyperMLP):
    """As hypermlp, with the scores' width split between a gate, ReLU(h/‖h‖), and a scale, softplus(h'), that multiplies it."""

    branches = 2
