from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmix import Segments


def test_runs_are_sequences_and_zeros_are_padding() -> None:
    segments = Segments(torch.tensor([[1, 1, 1, 0, 0], [7, 7, 2, 2, 2]]))
    assert segments.lengths == (3, 2, 3) and segments.longest == 3 and segments.packed
    assert segments.row_counts == (1, 2)
    assert segments.positions.tolist() == [[0, 1, 2, 0, 0], [0, 1, 0, 1, 2]]
    assert segments.mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert segments.cu_seqlens.tolist() == [0, 3, 5, 8]


def test_padding_between_equal_ids_separates_them() -> None:
    assert Segments(torch.tensor([[1, 1, 0, 1, 1]])).lengths == (2, 2)


def test_a_mask_makes_one_sequence_a_row() -> None:
    segments = Segments.from_mask(torch.tensor([[False, True, False, True], [False] * 4]))
    assert segments.lengths == (2, 0) and not segments.packed
    assert segments.positions.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert Segments.from_mask(torch.tensor([[1, 0]])).lengths == (1,)


def test_from_lengths() -> None:
    assert Segments.from_lengths([2, 0, 3]).ids.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert Segments.from_lengths(torch.tensor([1]), 3).ids.tolist() == [[1, 0, 0]]
    assert Segments.from_lengths([[1, 2], [3]], 4).ids.tolist() == [[1, 2, 2, 0], [1, 1, 1, 0]]
    assert Segments.from_lengths([]).mask.shape == (0, 0)
    packed = [[3, 2], [1, 4]]
    for lengths in (packed, torch.tensor(packed), torch.tensor(packed).numpy(), [torch.tensor(row) for row in packed]):
        assert Segments.from_lengths(lengths).lengths == (3, 2, 1, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Segments(torch.zeros(3)), "shape"),
        (lambda: Segments(torch.zeros(2, 3)), "whole numbers"),
        (lambda: Segments.from_lengths([3, -1]), "negative"),
        (lambda: Segments.from_lengths([3, 2.5]), "should be whole numbers, none of them negative"),
        (lambda: Segments.from_lengths([3, float("inf")]), "should be whole numbers, none of them negative"),
        (lambda: Segments.from_lengths(["a"]), "should be whole numbers, none of them negative"),
        (lambda: Segments.from_lengths(5), "lengths=5 should be a list"),
        (lambda: Segments.from_lengths([3, 5], 4), "T=4"),
        (lambda: Segments.from_lengths([3, 5], 8.0), "T=8.0 should be a whole number"),
        (lambda: Segments.from_lengths([3, 5], "8"), "T='8' should be a whole number"),
        (lambda: Segments("ab"), "segment ids should be a tensor of shape"),
        (lambda: Segments.from_mask(None), "a mask should be a tensor of shape"),
        (lambda: Segments.from_mask(torch.zeros(2, 3)), "bool"),
    ],
)
def test_bad_input_is_named(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_one_long_sequence_does_not_blow_up_a_packed_batch() -> None:
    segments = Segments.from_lengths([[512] + [1] * 512])
    x = torch.randn(1, 1024, 2)
    parts = segments.split(x)
    assert sum(part.shape[0] * part.shape[1] for part, _ in parts) <= 2 * 1024
    assert torch.equal(segments.join([part for part, _ in parts]), x)


batches = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(batches)
def test_split_and_join_are_inverse(rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    segments = Segments(ids)
    x = torch.arange(1.0, ids.numel() + 1).view(*ids.shape, 1)
    expected = torch.where(ids[..., None] != 0, x, 0)
    dirty = torch.where(ids[..., None] != 0, x, torch.nan)
    assert torch.equal(segments.join([part for part, _ in segments.split(dirty)]), expected)
    if segments.longest:
        assert torch.equal(segments.unrows(segments.rows(dirty)[0]), expected)
    runs = [run for row in rows for run in _runs(row)]
    assert [n for n in segments.lengths if n] == [len(run) for run in runs]
    firsts = segments.per_sequence([part[:, :1, 0].sum(1) for part, _ in segments.split(dirty)])
    assert len(firsts) == len(segments.lengths)
    assert [value for value, n in zip(firsts.tolist(), segments.lengths, strict=True) if n] == [
        float(x[r, c]) for r, row in enumerate(rows) for c in _starts(row)
    ]


def _starts(row: list[int]) -> list[int]:
    return [c for c, value in enumerate(row) if value and (c == 0 or row[c - 1] != value)]


def _runs(row: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for c, value in enumerate(row):
        if c in _starts(row):
            found.append([])
        if value:
            found[-1].append(value)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.booleans())
def test_rows_of_are_those_of_lengths(lengths: list[int], long: bool) -> None:
    lengths = [700, *lengths] if long else lengths
    made, wanted = Segments.rows_of(torch.tensor(lengths)), Segments.from_lengths(lengths)
    for name in ("ids", "mask", "positions", "cu_seqlens", "places"):
        assert torch.equal(getattr(made, name), getattr(wanted, name)), name
    for name in ("lengths", "row_counts", "longest", "packed", "unmoved"):
        assert getattr(made, name) == getattr(wanted, name), name
    assert torch.equal(made.chunks.table, wanted.chunks.table) and torch.equal(made.chunks.first, wanted.chunks.first)
    assert made.chunks[2:] == wanted.chunks[2:]
    x = torch.randn(*made.mask.shape, 2)
    (part, rows), (other, theirs) = made.rows(x), wanted.rows(x)
    assert torch.equal(part, other) and torch.equal(rows.mask, theirs.mask) and torch.equal(rows.lengths, theirs.lengths)
    assert torch.equal(made.join([part]), wanted.join([other]))
