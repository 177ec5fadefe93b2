"""Hierarchical Shift Mixing (Forchheimer 2026, arXiv 2601.22852): each layer mixes a token with one a power of two back.

Only the paper's abstract was at hand; the equations, the schedule and the variants below are our reading of it.

    layer 0   t ── t-1
    layer 1   t ────── t-2           after L layers every causal pair within 2^L tokens has one path
    layer 2   t ────────────── t-4

The bidirectional form, which shifts both ways, is our extension.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.mixer import GELU, SIGMOID, Cost, PreparedStep, State, in_place, register
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows, Segments
from tokmix.layers import memory
from tokmix.ops import shift_mix

Schedule = Literal["ascending", "descending", "cyclic"]


def rungs(max_len: int) -> int:
    """Number of shifts 1, 2, 4, ... below max_len."""
    return max(1, math.ceil(math.log2(max_len)))


def shift_of(schedule: Schedule | tuple[int, ...], place: int, max_len: int) -> int:
    """The shift of the layer with this number.

    ascending: 1, 2, 4, ..., top, 1, 2, ...     descending: top, ..., 2, 1, top, ...
    cyclic: 1, 2, ..., top, ..., 2, 1, 2, ...   a tuple: its own numbers, over and over
    """
    if isinstance(schedule, tuple):
        return schedule[place % len(schedule)]
    count = rungs(max_len)
    if schedule == "cyclic":
        period = max(1, 2 * count - 2)
        place = place % period
        return 2 ** min(place, period - place)
    rung = place % count
    return 2 ** (rung if schedule == "ascending" else count - 1 - rung)


class SourceWeights(nn.Module):
    """One weight for x and one for each of its partners."""

    def __init__(self, weights: list[Tensor]):
        super().__init__()
        self.names = [str(index) for index in range(len(weights))]
        for name, weight in zip(self.names, weights, strict=True):
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.names]

    def __getitem__(self, index: int) -> Tensor:
        return self()[index]


@register("hsm")
class HSM(RowMixer):
    """variant   ab: scalars a, b; vector: one pair per channel; matrix; gate; gate2; fusion (see docs/hsm.md)
    heads     groups of channels; head h takes the shift of place layer + h
    schedule  how the shift grows with the layer; shift: one fixed distance instead
    hidden    inner width of variant fusion (default: dim)
    """

    modes = frozenset({"bidirectional", "causal", "padded", "packed", "step"})
    order = "T"

    def __init__(
        self,
        dim: int,
        *,
        causal: bool,
        max_len: int,
        layer: int = 0,
        variant: Literal["ab", "vector", "matrix", "gate", "gate2", "fusion"] = "vector",
        heads: int = 1,
        schedule: Schedule | tuple[int, ...] = "ascending",
        shift: int | None = None,
        hidden: int | None = None,
    ):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        checks.divides("heads", heads, "dim", dim)
        if hidden is not None and variant != "fusion":
            raise ValueError(f"hidden={hidden} is for variant 'fusion', not {variant!r}")
        if shift is not None and schedule != "ascending":
            raise ValueError(f"shift={shift} and schedule={schedule!r} exclude each other")
        for number in (shift,) if shift is not None else schedule if isinstance(schedule, tuple) else ():
            checks.at_least("shift", number, 1)
        self.variant, self.heads = variant, heads
        self.shifts = tuple(shift or shift_of(schedule, layer + head, max_len) for head in range(heads))
        self.sources = 2 if causal else 3  # x and its partners
        self._make(dim // heads, dim if hidden is None else hidden)

    def _make(self, e: int, hidden: int) -> None:
        H, n = self.heads, self.sources
        checks.divides("heads", H, "hidden", hidden)
        self.inner = hidden // H
        if self.variant in ("ab", "vector"):
            width = 1 if self.variant == "ab" else e
            self.weights = SourceWeights([torch.full((H, width), 1 / n) for _ in range(n)])
        elif self.variant == "matrix":
            self.weights = SourceWeights([_uniform(H, e, e, fan_in=n * e) for _ in range(n)])
        elif self.variant == "fusion":
            self.weight = nn.Parameter(_uniform(H, n * e, self.inner, fan_in=n * e))
            self.outer = nn.Parameter(_uniform(H, self.inner, e, fan_in=self.inner))
        else:
            seen = e if self.variant == "gate" else n * e
            self.weight = nn.Parameter(_uniform(H, seen, e, fan_in=seen))
            self.bias = nn.Parameter(torch.zeros(H, e))

    def mix_in_layout(self, x: Tensor, segments: Segments | None) -> Tensor | None:
        """For the variants whose kernels read a batch in its own layout: moving tokens would cost more than mixing them."""
        if self.variant not in ("ab", "vector", "gate", "matrix") or (segments is not None and segments.places is None):
            return None
        places = None if segments is None else segments.places
        if self.variant == "gate":
            both_ways = not self.causal
            return shift_mix.gate_shift_mix(x, self.weight, self.bias, self.shifts, both_ways=both_ways, places=places)
        mixed = shift_mix.matrix_shift_mix if self.variant == "matrix" else shift_mix.shift_mix
        return mixed(x, self.weights(), self.shifts, places=places)

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None = None) -> Tensor | None:
        """Norm, mix and add in one kernel, if there is one."""
        fusable = self._fusable(norm)
        if fusable is None:
            return None
        weights = self.weights()
        if not shift_mix.has_norm_kernel(x, weights, fusable[0]):
            return None
        segments = self._checked(x, segments)
        if segments is not None and segments.places is None:
            return None
        places = None if segments is None else segments.places
        return shift_mix.norm_shift_mix(x, weights, *fusable, self.shifts, places=places)

    def _fusable(self, norm: nn.Module) -> tuple[Tensor, Tensor, float] | None:
        """A LayerNorm's gain, bias and eps, if this variant can be mixed in one pass with it."""
        if self.variant not in ("ab", "vector") or type(norm) is not nn.LayerNorm or norm.normalized_shape != (self.dim,):
            return None
        return None if norm.weight is None or norm.bias is None else (norm.weight, norm.bias, norm.eps)

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        x = x.unflatten(-1, (self.heads, -1))  # [S, L, H, e]
        if self.variant == "fusion" and x.device.type == "cpu":
            return shift_mix.fused_rows(x, self.shifts, not self.causal, self.weight, self.outer).flatten(2)
        others = [shift_mix.partners(x, self.shifts)]
        if not self.causal:  # a row ends in zeros, so only zeros move in from there
            others.append(shift_mix.partners(x, self.shifts, -1))
        return self._fuse(x, others).flatten(2)

    def _fuse(self, x: Tensor, others: list[Tensor]) -> Tensor:
        if self.variant in ("ab", "vector"):
            return shift_mix.weighted(x, others, self.weights())
        if self.variant == "matrix":
            return shift_mix.matrix(x, others, self.weights())
        if self.variant == "fusion":
            return shift_mix.fused(x, others, self.weight, self.outer)
        return shift_mix.gated(x, others, self.weight, self.bias, both=self.variant == "gate2")

    def empty_state(self, batch: int, like: Tensor) -> State:
        e = self.dim // self.heads
        rings = [like.new_zeros(batch, shift, e) for shift in self.shifts]
        return {"rings": rings, "position": memory.start(batch, like)}

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        x = x.unflatten(-1, (self.heads, -1))
        position = state["position"]
        counts = torch.full_like(position, x.shape[1]) if rows is None else rows.lengths
        moved = [
            shift_mix.step_partners(head, ring, position, counts, shift)
            for head, ring, shift in zip(x.unbind(2), state["rings"], self.shifts, strict=True)
        ]
        other = torch.stack([partner for partner, _ in moved], dim=2)
        after = {"rings": [ring for _, ring in moved], "position": position + counts}
        return self._fuse(x, [other]).flatten(2), after

    def step(self, x: Tensor, state: State, segments: Segments | None = None) -> tuple[Tensor, State]:
        done = self._one_token(x, state, segments, None)
        return super().step(x, state, segments) if done is None else done

    def step_normed(self, x: Tensor, norm: nn.Module, state: State, segments: Segments | None = None) -> tuple[Tensor, State] | None:
        fusable = self._fusable(norm)
        if fusable is None or self.heads > 1 or not shift_mix.has_norm_kernel(x, self.weights(), fusable[0]):
            return None
        return self._one_token(x, state, segments, fusable)

    def _one_token(
        self, x: Tensor, state: State, segments: Segments | None, norm: tuple[Tensor, Tensor, float] | None
    ) -> tuple[Tensor, State] | None:
        """One new token per row without touching the rest of the rings, whose size is the shift; None if that does not
        apply. Inside `inplace_states` the state is changed in place and returned, otherwise a copy of it."""
        if not self.causal or x.dim() != 3 or x.shape[1] != 1 or x.numel() == 0:
            return None
        rings, position = state["rings"], state["position"]
        same = all(torch.promote_types(x.dtype, ring.dtype) == ring.dtype for ring in rings)
        allowed, kernel = in_place(), shift_mix.has_step_kernel(x, rings[0])
        if not same or (allowed is None and not kernel):
            return None
        segments = self._checked(x, segments)
        self._check_state(x, state)
        if allowed is None:
            rings, position = [ring.clone() for ring in rings], position.clone()
        elif allowed.position is not None and segments is None and not kernel:
            return self._at_position(x, rings, allowed.position), {"rings": rings, "position": position.add_(1)}
        new = None if segments is None else segments.mask[:, 0]
        return self._stepped(x, rings, position, new, norm), {"rings": rings, "position": position}

    def _at_position(self, x: Tensor, rings: list[Tensor], position: int) -> Tensor:
        """Like `_stepped`, if all rows have one position that the host knows: partners are views of the rings."""
        given = x.unflatten(-1, (self.heads, -1))  # [B, 1, H, e]
        slots = [ring.select(1, position % ring.shape[1]) for ring in rings]  # [B, e] each
        other = slots[0][:, None, None] if self.heads == 1 else torch.stack(slots, dim=1)[:, None]
        y = self._fuse(given, [other]).flatten(2)
        for slot, head in zip(slots, x[:, 0].chunk(self.heads, dim=-1), strict=True):
            slot.copy_(head)
        return y

    def prepared_step(self) -> PreparedStep | None:
        if self.variant not in ("ab", "vector"):
            return None
        a, b = (weight.detach().expand(self.heads, self.dim // self.heads).reshape(-1) for weight in self.weights())

        def step(x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
            slots = [ring[0, position % shift] for ring, shift in zip(state["rings"], self.shifts, strict=True)]
            y = torch.addcmul(a * x, b, slots[0] if self.heads == 1 else torch.cat(slots))
            for slot, head in zip(slots, x.chunk(self.heads), strict=True):
                slot.copy_(head)
            return y, {"rings": state["rings"], "position": state["position"].add_(1)}

        return step

    def _stepped(
        self, x: Tensor, rings: list[Tensor], position: Tensor, new: Tensor | None, norm: tuple[Tensor, Tensor, float] | None
    ) -> Tensor:
        """The mixed tokens; changes rings and position."""
        given = x.unflatten(-1, (self.heads, -1))  # [B, 1, H, e]
        gates = shift_mix.per_head(given, self.weight) if self.variant == "gate" else None
        mixed = []
        for h, ring in enumerate(rings):
            weights = [weight[h : h + 1] for weight in self.weights()] if self.variant in ("ab", "vector") else None
            gate = None if gates is None else (gates[:, :, h], self.bias[h])
            last = h == self.heads - 1
            mixed.append(shift_mix.step(given[:, :, h], ring, position, new=new, weights=weights, gate=gate, norm=norm, advance=last))
        y = mixed[0][:, :, None] if self.heads == 1 else torch.stack(mixed, dim=2)  # stacking one would copy it, as slow as the step
        if self.variant in ("ab", "vector", "gate"):
            return y.flatten(2)
        y = self._fuse(given, [y]).flatten(2)
        return y if new is None else torch.where(new[:, None, None], y, 0)

    def cost(self, length: int) -> Cost:
        n, d, e = self.sources, self.dim, self.dim // self.heads
        state = sum(self.shifts) * e + 1 if self.causal else 0
        if self.variant in ("ab", "vector"):
            return Cost(0, length * d * (2 * n - 1), state)
        if self.variant == "matrix":
            return Cost(length * 2 * n * d * e, 0, state)
        if self.variant == "fusion":
            inner = self.inner * self.heads
            return Cost(length * 2 * (n + 1) * inner * e, length * GELU * inner, state)
        seen = 1 if self.variant == "gate" else n
        return Cost(length * 2 * seen * d * e, length * d * (SIGMOID + 2 + n), state)

    def reach(self) -> int:
        return max(self.shifts)


def _uniform(*shape: int, fan_in: int) -> Tensor:
    """The spread of nn.Linear's own initialisation."""
    return torch.empty(*shape).uniform_(-(fan_in**-0.5), fan_in**-0.5)
