"""The common way to write a mixer: for rows of one whole sequence each. This file handles all other layouts.

forward:  x [B, T, D] --segments--> part [S, L, D] --mix-->     y [S, L, D] --segments--> y [B, T, D]
step:     x [B, T, D] --segments--> part [B, L, D] --advance--> y [B, L, D] --segments--> y [B, T, D]
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from tokmix.core.mixer import Mixer, State
from tokmix.core.segments import Rows, Segments, check_segments


class RowMixer(Mixer):
    """A subclass writes `mix`; with the step mode also `empty_state` and `advance`, with the cross mode also `cross`."""

    @abstractmethod
    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        """x [S, L, D], each row one sequence from column 0 on, zero after its end; rows is None if all are full. The
        result after a row's end is ignored, but its gradient must be finite."""

    def mix_in_layout(self, x: Tensor, segments: Segments | None) -> Tensor | None:
        """The whole batch in its own layout, padded or packed, for mixers that can do this faster than by rows; None if
        this one cannot. Values at padding are ignored, and the output there is zero."""
        return None

    def cross(self, x: Tensor, rows: Rows | None, keys: Tensor, values: Tensor, key_rows: Rows | None) -> Tensor:
        """As `mix`, for tokens x [S, L, D] that read keys and values [S, M, D]."""
        raise self.lacks("cross")

    def empty_state(self, batch: int, like: Tensor) -> State:
        """The state before the first token: a pytree of tensors, batch first."""
        raise self.lacks("step")

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        """The next tokens of each row, x [B, L, D], from column 0 on: rows.lengths of them, or all L if rows is None. A
        row with none keeps its state."""
        raise self.lacks("step")

    def forward(
        self,
        x: Tensor,
        segments: Segments | None = None,
        *,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        key_segments: Segments | None = None,
    ) -> Tensor:
        segments = self._checked(x, segments)
        if keys is not None:
            return self._cross(x, segments, keys, keys if values is None else values, key_segments)
        if values is not None or key_segments is not None:
            raise ValueError(f"mixer {self.kind!r} was given values or key_segments without keys")
        if x.numel() == 0:
            return x.clone()
        longest = x.shape[1] if segments is None else segments.longest
        self._check_length(longest)
        mixed = self.mix_in_layout(x, segments) if longest else None
        if mixed is not None:
            return mixed
        if segments is None:
            return self.mix(x, None)
        if longest == 0:
            return Rows(segments.mask, segments.positions).zero(x)
        return segments.join([self.mix(part, rows) for part, rows in segments.split(x)])

    def _cross(self, x: Tensor, segments: Segments | None, keys: Tensor, values: Tensor, key_segments: Segments | None) -> Tensor:
        if "cross" not in self.modes or self.causal:
            raise self.lacks("cross")
        key_segments = self._checked(keys, key_segments)
        if values.shape != keys.shape or keys.shape[0] != x.shape[0]:
            raise ValueError(
                f"keys {list(keys.shape)} and values {list(values.shape)} should both be [B, M, D] with the B of x {list(x.shape)}"
            )
        counts, key_counts = (s.row_counts if s is not None and s.packed else (1,) * x.shape[0] for s in (segments, key_segments))
        if counts != key_counts:
            raise ValueError(
                f"rows of x have {list(counts)} sequences, but those of keys {list(key_counts)}: each sequence needs its own keys"
            )
        if x.numel() == 0 or keys.numel() == 0:
            return x.new_zeros(x.shape)
        part, rows = (x, None) if segments is None else segments.rows(x)
        key_part, key_rows = (keys, None) if key_segments is None else key_segments.rows(keys)
        value_part = values if key_segments is None else key_segments.rows(values)[0]
        if 0 in part.shape:
            return x.new_zeros(x.shape)
        y = self.cross(part, rows, key_part, value_part, key_rows)
        return y if segments is None else segments.unrows(y)

    def init_state(self, batch: int, like: Tensor) -> State:
        if "step" not in self.modes or not self.causal:
            raise self.lacks("step")
        return self.empty_state(batch, like)

    def step(self, x: Tensor, state: State, segments: Segments | None = None) -> tuple[Tensor, State]:
        if "step" not in self.modes or not self.causal:
            raise self.lacks("step")
        segments = self._checked(x, segments)
        self._check_state(x, state)
        if segments is not None and segments.packed:
            raise ValueError(f"step of mixer {self.kind!r} was given packed segments; it continues one sequence a row")
        if x.numel() == 0 or (segments is not None and segments.longest == 0):
            return x.new_zeros(x.shape), state
        if segments is None:
            return self.advance(x, state, None)
        part, rows = segments.rows(x)
        y, state = self.advance(part, state, rows)
        return segments.unrows(y), state

    def _checked(self, x: Tensor, segments: Segments | None) -> Segments | None:
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ValueError(
                f"mixer {self.kind!r} of dim={self.dim} was given a tensor of shape {list(x.shape)}; it takes [B, T, {self.dim}]"
            )
        if segments is None:
            return None
        check_segments(segments)
        if segments.mask.shape != x.shape[:2]:
            raise ValueError(f"segments of shape {list(segments.mask.shape)} do not fit a tensor of shape {list(x.shape)}")
        if segments.packed and "packed" not in self.modes:
            raise self.lacks("packed")
        if not segments.packed and "padded" not in self.modes:
            raise self.lacks("padded")
        return segments.to(x.device)

    def _check_state(self, x: Tensor, state: State) -> None:
        """Checks only the tensors of a plain dict, since this runs for every token."""
        for leaf in state.values() if isinstance(state, dict) else ():
            if isinstance(leaf, Tensor) and leaf.shape[0] != x.shape[0]:
                raise ValueError(f"a state of {leaf.shape[0]} rows does not fit a tensor of shape {list(x.shape)}")

    def _check_length(self, length: int) -> None:
        if self.limit is not None and length > self.limit:
            raise ValueError(f"a sequence of {length} tokens is longer than mixer {self.kind!r} takes: max_len={self.limit}")
