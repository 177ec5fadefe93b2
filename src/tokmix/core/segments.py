"""Where sequences begin and end in a batch: the one place that knows padding and packing.

    ids   [[1, 1, 1, 0, 0],        one sequence of 3, then padding
           [1, 1, 2, 2, 2]]        two sequences packed into a row

Mixers never see this layout. `split` hands them rows that hold one sequence each, from column 0 on, with zeros
behind its end, and `join` brings the results back; so padded, packed and alone are the same computation.

    x [B, T, D] --split--> [(part [S, L, D], Rows), ...] --mixer--> [y [S, L, D], ...] --join--> y [B, T, D]

Everything is computed once, at construction, on the host: asking a GPU for a length later would stall it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import index
from typing import NamedTuple, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core import token_offsets


class Rows:
    """A batch in which each row is one sequence that starts at column 0."""

    def __init__(self, mask: Tensor, lengths: Tensor):
        self.mask = mask  # [S, L] bool, True = real token
        self.lengths = lengths  # [S]

    def zero(self, x: Tensor) -> Tensor:
        """x [S, L, ...] with zeros (not NaN times zero) wherever no real token stands."""
        return torch.where(self.mask.view(*self.mask.shape, *[1] * (x.dim() - 2)), x, 0)

    def to(self, device: torch.device) -> Rows:
        return Rows(self.mask.to(device), self.lengths.to(device))


class _Group:
    """Some of a batch's sequences, and the places of their tokens in the flattened batch."""

    def __init__(self, index: Tensor | None, rows: Rows):
        self.index = index  # [S, L] into [B * T], or None where the batch already has this layout
        self.rows = rows

    def take(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [S, L, ...]"""
        return self.rows.zero(x if self.index is None else x.flatten(0, 1)[self.index])

    def to(self, device: torch.device) -> _Group:
        return _Group(None if self.index is None else self.index.to(device), self.rows.to(device))


class _Layout:
    """A batch taken apart into groups of rows, and the way back."""

    def __init__(self, groups: list[_Group], back: Tensor, place: Tensor, mask: Tensor):
        self.groups = groups
        self.back = back  # [B, T], where each token stands among the rows of all groups
        self.place = place  # [S], where each sequence stands among them
        self.mask = mask  # [B, T]

    def split(self, x: Tensor) -> list[tuple[Tensor, Rows]]:
        return [(group.take(x), group.rows) for group in self.groups]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        if len(self.groups) == 1 and self.groups[0].index is None:
            return Rows(self.mask, self.back).zero(parts[0])
        flat = torch.cat([part.flatten(0, 1) for part in parts])
        if flat.shape[0] == 0:  # padding alone
            return flat.new_zeros(*self.mask.shape, *flat.shape[1:])
        return Rows(self.mask, self.back).zero(flat[self.back])

    def to(self, device: torch.device) -> _Layout:
        return _Layout([group.to(device) for group in self.groups], self.back.to(device), self.place.to(device), self.mask.to(device))


class _Host(NamedTuple):
    """What a batch looks like, on the host, and how it is taken apart."""

    mask: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    tokens: Tensor  # flat indices of the real tokens, sequence after sequence
    lengths: Tensor  # [S]
    sequence: Tensor  # [B, T], the number of each token's sequence

    def layout(self, keys: Tensor) -> _Layout:
        """One group of rows for each distinct key; keys [S] holds one per sequence."""
        groups, orders, base = [], [torch.zeros(0, dtype=torch.long)], 0
        slots = torch.zeros(len(self.lengths), dtype=torch.long)  # where each sequence's first token stands
        for key in keys.unique():
            which = (keys == key).nonzero().flatten()
            group = self._group(which)
            S, L = group.rows.mask.shape
            slots[which] = base + torch.arange(S) * L
            groups.append(group)
            orders.append(which)
            base += S * L
        back = torch.where(self.mask, slots[self.sequence] + self.positions, 0) if len(self.lengths) else self.positions
        return _Layout(groups, back, torch.cat(orders).argsort(), self.mask)

    def _group(self, which: Tensor) -> _Group:
        picked = self.lengths[which]
        starts = (self.lengths.cumsum(0) - self.lengths)[which]
        column = torch.arange(int(picked.max()))
        mask = column < picked[:, None]
        index = torch.zeros(mask.shape, dtype=torch.long)
        index[mask] = self.tokens[(starts[:, None] + column)[mask]]
        here = torch.arange(self.mask.numel()).view(self.mask.shape)
        unmoved = index.shape == here.shape and bool((index == here)[mask].all())
        return _Group(None if unmoved else index, Rows(mask, picked))


def check_segments(given: object) -> None:
    if not isinstance(given, Segments):
        raise ValueError(f"segments should be a tokmix.Segments, such as Segments.from_mask(mask), not a {type(given).__name__}")


def _plain(lengths: object) -> object:
    """Tensors and arrays, also inside of lists, as lists and numbers."""
    if hasattr(lengths, "tolist"):
        return lengths.tolist()
    return [_plain(n) for n in lengths] if isinstance(lengths, Iterable) and not isinstance(lengths, str) else lengths


def _whole(what: str, given: SupportsIndex) -> int:
    try:
        return index(given)
    except TypeError:
        raise ValueError(f"{what}={given!r} should be a whole number") from None


def _tensor(what: str, given: object) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} should be a tensor of shape [B, T], not {str(given)[:80]!r}") from None


class Segments:
    """ids [B, T]: 0 is padding, a run of one non-zero id is one sequence. Never changed after it is made.

    mask        [B, T] bool, True = real token
    positions   [B, T] of each token within its own sequence; 0 at padding
    lengths     of every sequence, in reading order, as host integers
    row_counts  how many sequences each row holds, as host integers
    cu_seqlens  [S + 1] int32, where each sequence starts among the real tokens
    longest     the longest sequence; packed: whether some row holds more than one sequence
    places, chunks   the same for kernels that read x as it stands (token_offsets.py); None for a mask with holes

    An unpacked batch has one sequence a row, even where that row is all padding (length 0); a packed batch has
    the non-empty ones alone.
    """

    def __init__(self, ids: Tensor):
        ids = _tensor("segment ids", ids)
        if ids.dim() != 2 or ids.dtype.is_floating_point or ids.dtype.is_complex:
            raise ValueError(f"segment ids should be whole numbers of shape [B, T], not {ids.dtype} of shape {list(ids.shape)}")
        host = ids.detach().cpu().long()
        before = F.pad(host, (1, 0))[:, :-1]
        self._build(host, (host != 0) & (host != before), ids.device)

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int] | Sequence[Sequence[int]] | Tensor,
        T: int | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> Segments:
        """One sequence a row of the given lengths; a list of lists packs several into a row."""
        given = _plain(lengths)
        if not isinstance(given, list):
            raise ValueError(f"lengths={given!r} should be a list, such as [7, 12], or [[3, 4], [12]] to pack several into a row")
        rows = [n if isinstance(n, list) else [n] for n in given]
        if not all(isinstance(n, (int, float)) and 0 <= n < float("inf") and n == int(n) for row in rows for n in row):
            raise ValueError(f"lengths={given} holds one that is negative or no whole number")
        rows = [[int(n) for n in row] for row in rows]
        needed = max((sum(row) for row in rows), default=0)
        width = needed if T is None else _whole("T", T)
        if width < needed:
            raise ValueError(f"T={T} is shorter than the longest row of lengths, {needed}")
        # Where each sequence ends; a token's id is the number of sequences that ended before it, plus one.
        ends = [list(itertools.accumulate(row)) for row in rows]
        most = max(map(len, ends), default=0)
        table = torch.tensor([row + [width] * (most - len(row)) for row in ends], dtype=torch.long).view(len(rows), most)
        column = torch.arange(width).expand(len(rows), width)
        total = torch.tensor([sum(row) for row in rows], dtype=torch.long)[:, None]
        ids = torch.where(column < total, torch.searchsorted(table, column.contiguous(), right=True) + 1, 0)
        segments = cls(ids)
        return segments if device is None else segments.to(device)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Segments:
        """True = real token. The real tokens of a row are one sequence wherever they stand: left padding and
        holes are skipped, not counted."""
        mask = _tensor("a mask", mask)
        if mask.dim() != 2 or mask.dtype.is_floating_point:
            raise ValueError(f"a mask should be bool of shape [B, T] (True = real token), not {mask.dtype} of shape {list(mask.shape)}")
        host = (mask.detach().cpu() != 0).long()
        segments = cls.__new__(cls)
        segments._build(host, (host == 1) & (host.cumsum(1) == 1), mask.device)
        return segments

    @classmethod
    def padded(cls, lengths: Tensor, T: int) -> Segments:
        """One sequence of 1 to T tokens a row, lengths [B], made on their device without asking the host: for CUDA graphs, which
        are recorded once and see other lengths at each replay. What the host knows of it are bounds: T for every length."""
        segments, B, device = cls.__new__(cls), lengths.shape[0], lengths.device
        column = torch.arange(T, device=device)
        mask = column < lengths[:, None]
        segments.ids, segments.mask, segments.positions = mask.long(), mask, torch.where(mask, column, 0)
        segments.lengths, segments.row_counts, segments.longest, segments.packed = (T,) * B, (1,) * B, T, False
        segments.cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).int()
        segments.places, segments.chunks = token_offsets.padded_places(lengths, T), token_offsets.padded_chunks(lengths, T)
        layout = _Layout([_Group(None, Rows(mask, lengths))], segments.positions, torch.arange(B, device=device), mask)
        segments._grouped = segments._single = layout
        return segments

    @classmethod
    def traceable(cls, mask: Tensor) -> Segments:
        """One sequence a row from column 0 on, mask [B, T], for torch.export: nothing here reads a size, which would fix it in the graph.
        Only plain torch can use it: kernels need `lengths`, `places` and `chunks`, which are empty."""
        segments, lengths = cls.__new__(cls), mask.sum(1)
        column = torch.arange(mask.shape[1], device=mask.device)
        segments.ids, segments.mask, segments.positions = mask.long(), mask, torch.where(mask, column, 0)
        segments.lengths, segments.row_counts, segments.longest, segments.packed = (), (), mask.shape[1], False
        segments.cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).int()
        segments.places = segments.chunks = None
        place = torch.arange(mask.shape[0], device=mask.device)
        segments._grouped = segments._single = _Layout([_Group(None, Rows(mask, lengths))], segments.positions, place, mask)
        return segments

    def _build(self, ids: Tensor, starts: Tensor, device: torch.device) -> None:
        B, T = ids.shape
        self.ids, self.mask = ids, ids != 0
        counts = starts.sum(1)
        self.row_counts: tuple[int, ...] = tuple(counts.tolist())
        self.packed = max(self.row_counts, default=0) > 1
        if self.packed:
            S = int(counts.sum())
            sequence = (starts.flatten().cumsum(0) - 1).view(B, T).clamp(min=0)
        else:
            S = B
            sequence = torch.arange(B)[:, None].expand(B, T)
        lengths = torch.bincount(sequence[self.mask], minlength=S)
        ends = lengths.cumsum(0)
        tokens = self.mask.flatten().nonzero().flatten()  # flat indices of the real tokens, sequence after sequence
        self.positions = torch.zeros(B, T, dtype=torch.long)
        self.positions[self.mask] = torch.arange(len(tokens)) - (ends - lengths)[sequence[self.mask]]
        self.lengths: tuple[int, ...] = tuple(lengths.tolist())
        self.longest = max(self.lengths, default=0)
        self.cu_seqlens = F.pad(ends, (1, 0)).int()
        self.places, self.chunks = token_offsets.places_of(self), token_offsets.chunks_of(self)
        self._host = _Host(self.mask, self.positions, tokens, lengths, sequence)
        # Rows of one common length would be mostly empty where a packed batch holds few long sequences and many short
        # ones: then group by length, so that at most half of a group is, and make such rows only when asked to.
        uneven = self.packed and S * self.longest > 2 * len(tokens)
        keys = torch.log2(lengths.double()).ceil() if uneven else torch.zeros(S)
        self._grouped = self._host.layout(keys)
        self._single = None if uneven else self._grouped
        self._move(device)

    def _move(self, device: torch.device) -> None:
        self.ids, self.mask, self.positions = self.ids.to(device), self.mask.to(device), self.positions.to(device)
        self.cu_seqlens = self.cu_seqlens.to(device)
        self.places = None if self.places is None else self.places.to(device)
        self.chunks = None if self.chunks is None else self.chunks.to(device)
        self._grouped = self._grouped.to(device)
        self._single = None if self._single is None else self._grouped

    def to(self, device: torch.device | str | None) -> Segments:
        """On another device. None changes nothing, as for a tensor."""
        device = self.mask.device if device is None else torch.device(device)
        here = self.mask.device
        if here.type == device.type and (device.index is None or here.index == device.index):
            return self
        moved = Segments.__new__(Segments)
        moved.__dict__.update(self.__dict__)
        moved._move(device)
        return moved

    def __repr__(self) -> str:
        return f"Segments({list(self.mask.shape)}, lengths={list(self.lengths)}, packed={self.packed})"

    @property
    def unmoved(self) -> bool:
        """Whether every row of the batch is one sequence from column 0 on: a token's position is its column."""
        return len(self._grouped.groups) == 1 and self._grouped.groups[0].index is None

    def split(self, x: Tensor) -> list[tuple[Tensor, Rows]]:
        """x [B, T, ...] -> rows of one sequence each, [S, L, ...], in groups of similar length."""
        return self._grouped.split(x)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """What `split` took apart, back as [B, T, ...], zero at padding."""
        return self._grouped.join(parts)

    def rows(self, x: Tensor) -> tuple[Tensor, Rows]:
        """As `split`, but all sequences in one group and in reading order: [S, longest, ...]."""
        return self._one_each().split(x)[0]

    def unrows(self, y: Tensor) -> Tensor:
        """What `rows` took apart, back as [B, T, ...], zero at padding."""
        return self._one_each().join([y])

    def _one_each(self) -> _Layout:
        if self._single is None:
            self._single = self._host.layout(torch.zeros(len(self.lengths))).to(self.mask.device)
        return self._single

    def per_sequence(self, pooled: Sequence[Tensor]) -> Tensor:
        """One value for each row of each part of `split` -> [S, ...] in reading order."""
        return torch.cat(list(pooled))[self._grouped.place]
