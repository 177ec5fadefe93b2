"""Where sequences begin and end in a batch: the one place that knows padding and packing.

    ids   [[1, 1, 1, 0, 0],        one sequence of 3, then padding
           [1, 1, 2, 2, 2]]        two sequences packed into a row

Mixers do not see this layout. `split` makes rows of one sequence each, which starts at column 0 and has zeros after its
end. `join` puts the results back. So padded, packed and single sequences are one and the same computation.

    x [B, T, D] --split--> [(part [S, L, D], Rows), ...] --mixer--> [y [S, L, D], ...] --join--> y [B, T, D]

Everything is computed once, at construction, on the host: reading a length back from a GPU later would stall it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tokmix.core import token_offsets


class Rows:
    """A batch in which each row is one sequence that starts at column 0."""

    def __init__(self, mask: Tensor, lengths: Tensor):
        self.mask = mask  # [S, L] bool, True = real token
        self.lengths = lengths  # [S]

    def zero(self, x: Tensor) -> Tensor:
        """x [S, L, ...] with zeros at padding. This is a select and not a product, since NaN times zero is NaN."""
        return torch.where(self.mask.view(*self.mask.shape, *[1] * (x.dim() - 2)), x, 0)

    def to(self, device: torch.device) -> Rows:
        return Rows(self.mask.to(device), self.lengths.to(device))


class _Group:
    """Some sequences of a batch, and the indices of their tokens in the flattened batch."""

    def __init__(self, index: Tensor | None, rows: Rows):
        self.index = index  # [S, L] into [B * T], or None where the batch already has this layout
        self.rows = rows

    def take(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [S, L, ...]"""
        return self.rows.zero(x if self.index is None else x.flatten(0, 1)[self.index])

    def to(self, device: torch.device) -> _Group:
        return _Group(None if self.index is None else self.index.to(device), self.rows.to(device))


class _Layout:
    """How a batch is split into groups of rows, and joined again."""

    def __init__(self, groups: list[_Group], token_index: Tensor, row_index: Tensor, mask: Tensor):
        self.groups = groups
        self.token_index = token_index  # [B, T], of each token in the flattened rows of all groups
        self.row_index = row_index  # [S], of each sequence in the rows of all groups
        self.mask = mask  # [B, T]

    def split(self, x: Tensor) -> list[tuple[Tensor, Rows]]:
        return [(group.take(x), group.rows) for group in self.groups]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        if len(self.groups) == 1 and self.groups[0].index is None:
            if torch.compiler.is_exporting():  # one select less in the graph: whoever reads padding sets it to zero first
                return parts[0]
            return Rows(self.mask, self.token_index).zero(parts[0])
        flat = torch.cat([part.flatten(0, 1) for part in parts])
        if flat.shape[0] == 0:  # padding alone
            return flat.new_zeros(*self.mask.shape, *flat.shape[1:])
        return Rows(self.mask, self.token_index).zero(flat[self.token_index])

    def to(self, device: torch.device) -> _Layout:
        groups = [group.to(device) for group in self.groups]
        return _Layout(groups, self.token_index.to(device), self.row_index.to(device), self.mask.to(device))


class _Host(NamedTuple):
    """The sequences of a batch, as tensors on the host."""

    mask: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    tokens: Tensor  # flat indices of the real tokens, sequence after sequence
    lengths: Tensor  # [S]
    sequence: Tensor  # [B, T], the number of each token's sequence

    def layout(self, keys: Tensor) -> _Layout:
        """One group of rows for each distinct key; keys [S] holds one per sequence."""
        groups, orders, base = [], [torch.zeros(0, dtype=torch.long)], 0
        starts = torch.zeros(len(self.lengths), dtype=torch.long)  # of each sequence, in the flattened rows of all groups
        for key in keys.unique():
            members = (keys == key).nonzero().flatten()
            group = self._group(members)
            S, L = group.rows.mask.shape
            starts[members] = base + torch.arange(S) * L
            groups.append(group)
            orders.append(members)
            base += S * L
        token_index = torch.where(self.mask, starts[self.sequence] + self.positions, 0) if len(self.lengths) else self.positions
        return _Layout(groups, token_index, torch.cat(orders).argsort(), self.mask)

    def _group(self, members: Tensor) -> _Group:
        lengths = self.lengths[members]
        starts = (self.lengths.cumsum(0) - self.lengths)[members]
        column = torch.arange(int(lengths.max()))
        mask = column < lengths[:, None]
        index = torch.zeros(mask.shape, dtype=torch.long)
        index[mask] = self.tokens[(starts[:, None] + column)[mask]]
        same = torch.arange(self.mask.numel()).view(self.mask.shape)
        unmoved = index.shape == same.shape and bool((index == same)[mask].all())
        return _Group(None if unmoved else index, Rows(mask, lengths))


def check_segments(segments: object) -> None:
    if not isinstance(segments, Segments):
        raise ValueError(f"segments should be a tokmix.Segments, such as Segments.from_mask(mask), not a {type(segments).__name__}")


def _plain(lengths: object) -> object:
    """Tensors and arrays, also those inside lists, as lists and numbers."""
    if hasattr(lengths, "tolist"):
        return lengths.tolist()
    return [_plain(n) for n in lengths] if isinstance(lengths, Iterable) and not isinstance(lengths, str) else lengths


def _tensor(what: str, value: object) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{what} should be a tensor of shape [B, T], not {str(value)[:80]!r}") from None


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Segments | None]:
    """Lists of ids as a batch [B, T] with zeros at the end of shorter ones, and its segments; None where all have one length."""
    lengths = [len(row) for row in rows]
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True)
    return ids.to(device), Segments.from_lengths(lengths, device=device) if len(set(lengths)) > 1 else None


class Segments:
    """ids [B, T]: 0 is padding, a run of one non-zero id is one sequence. An instance never changes.

    mask        [B, T] bool, True = real token
    positions   [B, T] of each token within its own sequence; 0 at padding
    lengths     of every sequence, in reading order, as host integers
    row_counts  how many sequences each row holds, as host integers
    cu_seqlens  [S + 1] int32, where each sequence starts among the real tokens
    longest     length of the longest sequence
    packed      whether some row holds more than one sequence
    places, chunks   the layout in the form that kernels read (token_offsets.py); None for a mask with holes

    In an unpacked batch each row is one sequence, also a row of padding alone (length 0). In a packed batch only
    non-empty sequences count.
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
        """One sequence in each row, of the given lengths; a list of lists packs several into a row."""
        listed = _plain(lengths)
        if not isinstance(listed, list):
            raise ValueError(f"lengths={listed!r} should be a list, such as [7, 12], or [[3, 4], [12]] to pack several into a row")
        rows = [n if isinstance(n, list) else [n] for n in listed]
        if not all(isinstance(n, (int, float)) and 0 <= n < float("inf") and n == int(n) for row in rows for n in row):
            raise ValueError(f"lengths={listed} should be whole numbers, none of them negative")
        rows = [[int(n) for n in row] for row in rows]
        needed = max((sum(row) for row in rows), default=0)
        try:
            width = needed if T is None else index(T)
        except TypeError:
            raise ValueError(f"T={T!r} should be a whole number") from None
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
        """True = real token. All real tokens of a row form one sequence; left padding and holes do not count as positions."""
        mask = _tensor("a mask", mask)
        if mask.dim() != 2 or mask.dtype.is_floating_point:
            raise ValueError(f"a mask should be bool of shape [B, T] (True = real token), not {mask.dtype} of shape {list(mask.shape)}")
        host = (mask.detach().cpu() != 0).long()
        segments = cls.__new__(cls)
        segments._build(host, (host == 1) & (host.cumsum(1) == 1), mask.device)
        return segments

    @classmethod
    def rows_of(cls, lengths: Tensor, T: int | None = None) -> Segments:
        """One sequence in each row, lengths [B] on the host. Everything else is computed on first use: a recorded step
        (training/capture.py) needs the lengths alone."""
        listed = tuple(lengths.tolist())
        width = max(listed, default=0) if T is None else T
        if min(listed, default=0) < 1 or width > token_offsets.PIECE:
            return cls.from_lengths(lengths, width)
        segments = cls.__new__(cls)
        segments.__dict__ |= {"lengths": listed, "_later": (lengths, width)}
        return segments

    if not TYPE_CHECKING:  # else every misspelt attribute would be one

        def __getattr__(self, name: str) -> object:
            lengths, width = self.__dict__.pop("_later", (None, 0))
            if lengths is None:
                raise AttributeError(f"Segments has no attribute {name!r}")
            chunks = token_offsets.padded_chunks(lengths, width, full=min(self.lengths) == width)
            self.__dict__ |= Segments.padded(lengths, width).__dict__ | {"lengths": self.lengths, "chunks": chunks}
            return getattr(self, name)

    @classmethod
    def padded(cls, lengths: Tensor, T: int) -> Segments:
        """One sequence of 1 to T tokens in each row, lengths [B], computed on their device: a CUDA graph is recorded once and
        replayed with other lengths. The attributes on the host are upper bounds: T for every length."""
        B = lengths.shape[0]
        segments = cls._one_a_row(torch.arange(T, device=lengths.device) < lengths[:, None], lengths)
        segments.lengths, segments.row_counts = (T,) * B, (1,) * B
        segments.places, segments.chunks = token_offsets.padded_places(lengths, T), token_offsets.padded_chunks(lengths, T)
        return segments

    @classmethod
    def traceable(cls, mask: Tensor) -> Segments:
        """One sequence in each row from column 0 on, mask [B, T], for torch.export: no size is read, which would fix it in the graph.
        Kernels cannot use the result, since `lengths`, `places` and `chunks` are empty."""
        segments = cls._one_a_row(mask, mask.sum(1))
        segments.lengths, segments.row_counts = (), ()
        segments.places = segments.chunks = None
        return segments

    @classmethod
    def _one_a_row(cls, mask: Tensor, lengths: Tensor) -> Segments:
        """The attributes that follow from a mask [B, T] of rows that start at column 0, computed on its device."""
        segments = cls.__new__(cls)
        column = torch.arange(mask.shape[1], device=mask.device)
        segments.ids, segments.mask, segments.positions = mask.long(), mask, torch.where(mask, column, 0)
        segments.longest, segments.packed = mask.shape[1], False
        segments.cu_seqlens = F.pad(lengths.cumsum(0), (1, 0)).int()
        row_index = torch.arange(mask.shape[0], device=mask.device)
        segments._grouped = segments._single = _Layout([_Group(None, Rows(mask, lengths))], segments.positions, row_index, mask)
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
        # Rows of one width are mostly padding if a packed batch holds few long sequences and many short ones. Then the
        # sequences are grouped by length, at most half of a group is padding, and `rows` makes the single group when called.
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
        current = self.mask.device
        if current.type == device.type and (device.index is None or current.index == device.index):
            return self
        moved = Segments.__new__(Segments)
        moved.__dict__.update(self.__dict__)
        moved._move(device)
        return moved

    def __repr__(self) -> str:
        return f"Segments({list(self.mask.shape)}, lengths={list(self.lengths)}, packed={self.packed})"

    @property
    def unmoved(self) -> bool:
        """Whether each row of the batch is one sequence from column 0 on, so that a token's position is its column."""
        return len(self._grouped.groups) == 1 and self._grouped.groups[0].index is None

    def split(self, x: Tensor) -> list[tuple[Tensor, Rows]]:
        """x [B, T, ...] -> rows of one sequence each, [S, L, ...], in groups of similar length."""
        return self._grouped.split(x)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts of `split`, put back as [B, T, ...], zero at padding."""
        return self._grouped.join(parts)

    def rows(self, x: Tensor) -> tuple[Tensor, Rows]:
        """As `split`, but all sequences in one group and in reading order: [S, longest, ...]."""
        return self._single_group().split(x)[0]

    def unrows(self, y: Tensor) -> Tensor:
        """The result of `rows`, put back as [B, T, ...], zero at padding."""
        return self._single_group().join([y])

    def _single_group(self) -> _Layout:
        if self._single is None:
            self._single = self._host.layout(torch.zeros(len(self.lengths))).to(self.mask.device)
        return self._single

    def per_sequence(self, pooled: Sequence[Tensor]) -> Tensor:
        """One value for each row of each part of `split` -> [S, ...] in reading order."""
        return torch.cat(list(pooled))[self._grouped.row_index]
