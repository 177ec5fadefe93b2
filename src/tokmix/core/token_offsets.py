"""Where sequences begin and end in x [B, T, D], as tensors for kernels that read x without a copy.

`Segments` makes them once for each batch, on the host. They are None where padding stands inside a sequence (a mask
with holes); such a batch goes through `Segments.split`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 512


class Layout(Protocol):
    """The attributes of Segments that are read here."""

    mask: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    lengths: tuple[int, ...]


class Chunks(NamedTuple):
    """Every sequence cut into pieces of at most `size` tokens."""

    table: Tensor  # [C, 3] int32: the sequence, the first row of the piece among the B * T, and one past its last row
    first: Tensor  # [S + 1] int32: where the pieces of each sequence begin in the table
    size: int
    full: bool  # whether the pieces cover every row of the batch

    def to(self, device: torch.device) -> Chunks:
        return Chunks(self.table.to(device), self.first.to(device), self.size, self.full)


def places_of(segments: Layout) -> Tensor | None:
    """[2, B, T] int32: how many tokens of its own sequence stand before and after each token, -1 at padding."""
    mask, before = segments.mask.cpu(), segments.positions.cpu()
    ends = _ends(segments, mask, before)
    if ends is None:
        return None
    column = torch.arange(mask.shape[1])
    end = torch.where(ends, column, mask.shape[1]).flip(1).cummin(1).values.flip(1)
    places = torch.stack([torch.where(mask, before, -1), torch.where(mask, end - column, -1)])
    return places.int().to(segments.mask.device)


def chunks_of(segments: Layout, size: int = PIECE) -> Chunks | None:
    """The pieces of all sequences in reading order; an empty sequence has none."""
    mask, before = segments.mask.cpu(), segments.positions.cpu()
    if _ends(segments, mask, before) is None:
        return None
    lengths = torch.tensor(segments.lengths, dtype=torch.long)
    starts = torch.zeros_like(lengths)
    starts[lengths > 0] = (mask & (before == 0)).flatten().nonzero().flatten()
    pieces = (lengths + size - 1) // size
    first = F.pad(pieces.cumsum(0), (1, 0))
    sequence = torch.arange(len(lengths)).repeat_interleave(pieces)
    begin = starts[sequence] + (torch.arange(len(sequence)) - first[sequence]) * size
    end = torch.minimum(begin + size, (starts + lengths)[sequence])
    table = torch.stack([sequence, begin, end], dim=1)
    return Chunks(table.int(), first.int(), size, bool(mask.all())).to(segments.mask.device)


def _ends(segments: Layout, mask: Tensor, before: Tensor) -> Tensor | None:
    """[B, T] True at the last token of each sequence; None if a sequence has holes and so more than one end."""
    continues = F.pad(mask[:, 1:] & (before[:, 1:] == before[:, :-1] + 1), (0, 1))
    ends = mask & ~continues
    return ends if int(ends.sum()) == sum(length > 0 for length in segments.lengths) else None


def padded_places(lengths: Tensor, T: int) -> Tensor:
    """`places_of` for one sequence in each row, lengths [B], computed on their device."""
    column = torch.arange(T, device=lengths.device).expand(len(lengths), T)
    end = lengths[:, None] - 1
    return torch.where(column <= end, torch.stack([column, end - column]), -1).int()


def padded_chunks(lengths: Tensor, T: int, size: int = PIECE, full: bool = False) -> Chunks | None:
    """`chunks_of` for one sequence of at least one token in each row. None if rows may be longer than a piece: then the number of
    pieces depends on the lengths, which are on the device."""
    if size < T:
        return None
    row = torch.arange(len(lengths) + 1, device=lengths.device)
    start = row[:-1] * T
    return Chunks(torch.stack([row[:-1], start, start + lengths], 1).int(), row.int(), size, full)
