"""Launches of HyperMLP's backward kernels; see `kernels/backward.py` and `backward_sums` for the data flow.

Queries are taken in stripes: some tiles of queries of a sequence with all keys before them, or some whole short sequences,
as many as fit the scratch memory. So memory grows with the length, not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops.dispatch import processors
from tokmix.ops.hyper_mlp import launch
from tokmix.ops.hyper_mlp.kernels import backward as kernels
from tokmix.ops.hyper_mlp.kernels import backward_sums
from tokmix.ops.hyper_mlp.launch import LaunchSizes, Parts, by_token, last_dim_contiguous, padded, parts, strides
from tokmix.ops.sizes import cdiv

SCRATCH = 2**28  # bytes; a stripe is one tile of queries at least
RUN = 8  # tiles of lags of a program
# Warps and pipeline stages of a program: the fastest on an H200.
WEIGHTS, SCORES, BACK, BANKS, KEYS = (4, 3), (4, 3), (4, 2), (4, 3), (4, 4)


class Stripe(NamedTuple):
    sequences: slice
    first: int  # tile of queries
    end: int

    @property
    def rows(self) -> int:
        return int(self.sequences.stop - self.sequences.start)


def stripes(plan: LaunchSizes, tiles_at_once: int) -> Iterator[Stripe]:
    whole = plan.H * plan.tiles**2
    if whole <= tiles_at_once:
        for b in range(0, plan.B, tiles_at_once // whole):
            yield Stripe(slice(b, min(plan.B, b + tiles_at_once // whole)), 0, plan.tiles)
        return
    for b in range(plan.B):
        end = 0
        while end < plan.tiles:
            first, end = end, end + 1
            while end < plan.tiles and plan.H * (end + 1 - first) * (end + 1) <= tiles_at_once:
                end += 1
            yield Stripe(slice(b, b + 1), first, end)


class Given(NamedTuple):
    first: Parts
    second: Parts
    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    u: Tensor
    y: Tensor
    shrink: Tensor
    delta: Tensor
    dcontrol1: Tensor  # this one and the next are written
    dcontrol2: Tensor

    def of(self, rows: slice) -> Given:
        """Some of the sequences."""
        first, second = (bank if bank.control is None else bank._replace(control=bank.control[rows]) for bank in (self.first, self.second))
        return Given(first, second, *(x[rows] if x.numel() else x for x in self[2:]))


class Gradients:
    """Sums over all stripes. Banks as [shares, heads, tiles SIDE (, r)]."""

    def __init__(self, plan: LaunchSizes, given: Given, tiles_at_once: int):
        whole = plan.H * plan.tiles**2
        dtype = plan.dtype if whole <= tiles_at_once else torch.float32  # the former if one stripe covers every key
        self.dq, self.dk, self.dv = by_token(given.q), by_token(given.k, torch.zeros, dtype), by_token(given.v, torch.zeros, dtype)
        wanted = cdiv(2 * processors(plan.device), plan.tiles * plan.H)
        self.shares = max(1, min(wanted, plan.B, tiles_at_once // whole))
        self.first = self._room(plan, given.first, plan.score_heads)
        self.second = self._room(plan, given.second, plan.H)

    def _room(self, plan: LaunchSizes, bank: Parts, heads: int) -> list[Tensor]:
        if bank.down is None:
            return []
        shape = (self.shares, heads, plan.tiles * launch.SIDE)
        return [torch.zeros(size, device=plan.device) for size in ((*shape, bank.rank), (*shape, bank.rank), shape)]

    def of_bank(self, sums: list[Tensor], T: int, like: tuple[Tensor | None, ...]) -> list[Tensor]:
        """dA [H, T, r], dB [H, r, T], dp [H, T]"""
        if not sums:
            return [self.dq.new_empty(0, dtype=torch.float32) for _ in range(3)]
        down, up, diagonal = (x.sum(0)[:, :T] for x in sums)
        return [dx.to(x.dtype).contiguous() for dx, x in zip((down, up.mT, diagonal), like, strict=True) if x is not None]


def backward(
    do: Tensor, o: Tensor, u: Tensor, y: Tensor, shrink: Tensor, q: Tensor, k: Tensor, v: Tensor,
    down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, then A, B, p and s of both banks; empty if there is none."""
    do, q, k, v = last_dim_contiguous(do), last_dim_contiguous(q), last_dim_contiguous(k), last_dim_contiguous(v)
    first, second = parts(down1, up1, diagonal1, control1), parts(down2, up2, diagonal2, control2)
    plan = LaunchSizes(q, v, first, second, lag)
    delta = torch.empty_like(shrink)
    kernels.deltas[plan.tiles, plan.B * plan.H](
        do, o, shrink, delta, plan.T, plan.H, *strides(do, o), plan.f, min(128, padded(plan.f)), launch.SIDE, num_warps=4
    )
    dcontrol1 = torch.empty_like(u, dtype=u.dtype if control1 is None else control1.dtype)
    dcontrol2 = torch.empty_like(y, dtype=y.dtype if control2 is None else control2.dtype)
    given = Given(first, second, q, k, v, do, u, y, shrink, delta, dcontrol1, dcontrol2)
    kind = torch.bfloat16 if plan.dtype == torch.bfloat16 else torch.float32
    buffers = 6 if plan.score_heads > plan.H else 4
    tiles_at_once = max(plan.H * plan.tiles, SCRATCH // (buffers * kind.itemsize * launch.SIDE**2))
    found, cuts = Gradients(plan, given, tiles_at_once), list(stripes(plan, tiles_at_once))
    room = max(cut.rows * plan.H * (cut.end - cut.first) * cut.end for cut in cuts)
    scratch = torch.empty(buffers, room, launch.SIDE**2, dtype=kind, device=plan.device)
    for cut in cuts:
        Pass(plan, cut, scratch, given.of(cut.sequences), found).run()
    dfirst = found.of_bank(found.first, plan.T, (down1, up1, diagonal1))
    dsecond = found.of_bank(found.second, plan.T, (down2, up2, diagonal2))
    return found.dq, found.dk.to(plan.dtype), found.dv.to(plan.dtype), *dfirst, dcontrol1, *dsecond, dcontrol2


class Pass:
    """The backward pass of one stripe."""

    def __init__(self, plan: LaunchSizes, stripe: Stripe, scratch: Tensor, given: Given, found: Gradients):
        self.plan, self.stripe, self.given, self.found = plan, stripe, given, found
        self.dw, self.z, self.dh, self.a = scratch[:4]
        self.glu = plan.score_heads > plan.H
        self.z2, self.dh2 = scratch[4:] if self.glu else (self.z, self.dh)
        self.dz, self.dz2, self.w = self.z, self.z2, self.dw  # by key, where the banks' gradients have been read
        self.tiles, self.size = stripe.end, stripe.end - stripe.first
        self.runs = cdiv(self.tiles, RUN)
        self.at = (plan.T, plan.H, stripe.first, self.size, self.runs, self.tiles)
        self.programs = lambda columns: (self.size * self.runs, stripe.rows * plan.H)

    def run(self) -> None:
        gs = self.weights()
        es = self.scores(gs)
        self.banks(es, gs)
        self.back(es)
        self.keys()

    def sums(self, heads: int, width: int) -> tuple[Tensor, Tensor]:
        """Empty tensors for the part of each run and for their sum."""
        shape = (self.stripe.rows * heads, self.size * launch.SIDE, width)
        return self.plan.empty(self.runs, *shape), self.plan.empty(*shape)

    def sum_runs(self, bank: Parts, heads: int, part: Tensor, own: Tensor, scaled: Tensor, dcontrol: Tensor) -> None:
        if bank.control is not None:
            kernels.sum_runs[self.size, self.stripe.rows * heads](
                part, bank.control, own, scaled, dcontrol, self.plan.T, heads, *self.at[2:5], *strides(bank.control),
                bank.rank, padded(bank.rank), launch.SIDE,
            )  # fmt: skip

    def weights(self) -> Tensor:
        given, rank = self.given, self.given.second.rank
        part, gs = self.sums(self.plan.H, rank)
        self.plan.launch(
            kernels.weights, WEIGHTS, self.programs, given.do, given.v, given.second.up, self.dw, part,
            *self.at, *strides(given.do, given.v), R=rank, RP=padded(rank), RUN=RUN,
        )  # fmt: skip
        self.sum_runs(given.second, self.plan.H, part, given.y, gs, given.dcontrol2)
        return gs

    def scores(self, gs: Tensor) -> Tensor:
        given, kinds = self.given, self.plan.score_heads
        part, es = self.sums(kinds, given.first.rank)
        self.plan.launch(
            kernels.scores_backward, SCORES, self.programs,
            given.q, given.k, *given.first[1:], given.second.down, given.second.diagonal, given.u, gs, given.shrink, given.delta,
            self.dw, self.z, self.z2, self.dh, self.dh2, self.a, part, *self.at, *strides(given.q, given.k, given.first.control), RUN=RUN,
        )  # fmt: skip
        self.sum_runs(given.first, kinds, part, given.u, es, given.dcontrol1)
        return es

    def banks(self, es: Tensor, gs: Tensor) -> None:
        given, found, H, kinds = self.given, self.found, self.plan.H, self.plan.score_heads
        if found.first:
            self.bank(given.first, found.first, kinds, 0, self.z, self.dh, es, given.u)
            if self.glu:
                self.bank(given.first, found.first, kinds, H, self.z2, self.dh2, es, given.u)
        if found.second:
            self.bank(given.second, found.second, H, 0, self.a, self.dw, gs, given.y)

    def bank(self, which: Parts, sums: list[Tensor], heads: int, branch: int, x: Tensor, dx: Tensor, scaled: Tensor, own: Tensor) -> None:
        plan, shares = self.plan, self.found.shares
        plan.launch(
            backward_sums.banks, BANKS, lambda columns: (self.tiles, plan.H * shares),
            x, dx, scaled, own, which.control, *sums, plan.T, plan.H, heads, branch, self.stripe.first, self.size, self.tiles,
            self.stripe.rows, shares, plan.tiles, *strides(which.control), R=which.rank, RP=padded(which.rank),
        )  # fmt: skip

    def back(self, es: Tensor) -> None:
        given, plan, cut = self.given, self.plan, self.stripe
        dq = plan.empty(self.runs, cut.rows, plan.score_heads, self.size * launch.SIDE, plan.e)
        plan.launch(
            kernels.keys_backward, BACK, self.programs, given.k, given.first.down, given.first.diagonal, *given.second[1:], given.y, es,
            self.dh, self.dh2, self.a, self.dz, self.dz2, self.w, dq, *self.at, *strides(given.k, given.second.control), RUN=RUN,
        )  # fmt: skip
        begin, end = cut.first * launch.SIDE, min(plan.T, cut.end * launch.SIDE)
        self.found.dq[cut.sequences, :, begin:end] = (dq.sum(0) if self.runs > 1 else dq[0])[:, :, : end - begin]

    def keys(self) -> None:
        given, found, plan = self.given, self.found, self.plan
        self.onto_keys(self.dz, given.q, found.dk, 0, plan.loose)
        if self.glu:
            self.onto_keys(self.dz2, given.q, found.dk, plan.H, plan.loose)
        self.onto_keys(self.w, given.do, found.dv, 0, plan.values)

    def onto_keys(self, x: Tensor, by: Tensor, total: Tensor, head: int, how: str) -> None:
        H, width = self.plan.H, by.shape[3]
        by, total = by[:, head : head + H], total[self.stripe.sequences, head : head + H]
        self.plan.launch(
            backward_sums.keys, KEYS, lambda columns: (self.tiles, self.stripe.rows * H, cdiv(width, columns)),
            x, by, total, self.plan.T, H, self.stripe.first, self.size, self.tiles, *strides(by, total),
            F=width, FP=min(128, padded(width)), HOW=how,
        )  # fmt: skip
