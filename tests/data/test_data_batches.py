"""Batches: a pure function of (seed, epoch, step), the same for any number of ranks, every row or token once an epoch."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tokmix.data.batches.mask import IGNORE, Masking  # noqa: E402
from tokmix.data.batches.rows import RowBatches  # noqa: E402
from tokmix.data.batches.windows import Stream, WindowBatches  # noqa: E402
from tokmix.data.prepare.pipeline import prepare  # noqa: E402
from tokmix.data.split import holdout  # noqa: E402
from tokmix.data.tokens import TokenFiles  # noqa: E402


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    home = tmp_path_factory.mktemp("rows")
    lines = [f"{'word ' * (i * 7 % 23)}number {i}\t{'abc'[i % 3]}\n" for i in range(240)]
    (home / "a.tsv").write_text("text\tlabel\n" + "".join(lines))
    prepare(home / "a.tsv", home / "out", vocab=200, valid=0, test=0, shard_tokens=1500)
    return TokenFiles(home / "out")


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    home = tmp_path_factory.mktemp("scores")
    (home / "a.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(f"one {i}\ttwo {i % 7}\t{i / 4}\n" for i in range(60)))
    prepare(home / "a.tsv", home / "out", tokenizer="bytes", valid=0, test=0)
    return TokenFiles(home / "out")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    home = tmp_path_factory.mktemp("text")
    documents = [f"document {i}: " + "some words " * (i * 5 % 13) for i in range(150)]
    (home / "a.txt").write_text("<|endoftext|>".join(documents))
    prepare(home / "a.txt", home / "out", tokenizer="bytes", valid=0, test=0, shard_tokens=1000)
    return TokenFiles(home / "out")


def same(a, b):
    assert torch.equal(a.ids, b.ids) and torch.equal(a.targets, b.targets)
    assert (a.rows, a.count, a.total, a.weight) == (b.rows, b.count, b.total, b.weight)
    assert (a.segments is None) == (b.segments is None)
    if a.segments is not None:
        assert torch.equal(a.segments.ids, b.segments.ids)


def sequences(batch):
    """The sequences of a batch as lists of ids, in reading order."""
    if batch.segments is None:
        return batch.ids.tolist()
    numbers, mask = batch.segments.ids, batch.segments.mask
    return [row[mask[b] & (numbers[b] == n)].tolist() for b, row in enumerate(batch.ids) for n in numbers[b][mask[b]].unique()]


@pytest.mark.parametrize("packed", [False, True])
def test_every_row_once_an_epoch_with_its_own_ids_and_target(rows, packed):
    split = rows["train"]
    batches = RowBatches(split, tokens=300, packed=packed, seed=3)
    seen = []
    for batch in batches.epoch(2):
        assert batch.ids.numel() <= 300 and batch.ids.dtype == torch.int64
        assert batch.ids.shape[0] == (1 if packed else len(batch.rows))
        assert sequences(batch) == [split.row(row).tolist() for row in batch.rows]
        assert batch.targets.tolist() == [int(split.targets[row]) for row in batch.rows]
        assert batch.segments.lengths == tuple(len(split.row(row)) for row in batch.rows)
        assert batch.count == batch.total == len(batch.rows) and batch.weight == 1
        assert not batch.segments.packed or packed
        seen += batch.rows
    assert sorted(seen) == list(range(len(split)))


def test_padding_is_the_pad_token_and_little(rows):
    batches = RowBatches(rows["train"], tokens=600, pad_to=4)
    pad = rows.card.tokenizer["roles"]["pad"]
    real = slots = 0
    for batch in batches.epoch(0):
        assert batch.ids.shape[1] % 4 == 0
        assert (batch.ids[~batch.segments.mask] == pad).all()
        real, slots = real + int(batch.segments.mask.sum()), slots + batch.ids.numel()
    assert real / slots > 0.75  # rows in random order would fill about half


def test_order_is_a_function_of_seed_epoch_and_step(rows):
    def make(seed=0):
        return RowBatches(rows["train"], tokens=300, seed=seed)

    one = [list(make().epoch(epoch)) for epoch in range(2)]
    again = make()
    for step in (5, 0, len(one[1]) - 1, 7):  # asked for in any order, by an object that has seen nothing
        same(again.batch(1, step), one[1][step])
    for mine, kept in zip(make().epoch(1, start=4), one[1][4:], strict=True):
        same(mine, kept)
    assert [batch.rows for batch in one[0]] != [batch.rows for batch in one[1]]
    assert [batch.rows for batch in one[0]] != [batch.rows for batch in make(seed=1).epoch(0)]
    lengths = [batch.ids.shape[1] for batch in one[0]]
    assert lengths != sorted(lengths)  # batches are not used from short to long
    with pytest.raises(IndexError):
        make().batch(0, len(one[0]))


def test_unshuffled_batches_do_not_depend_on_seed_or_epoch(rows):
    first = [batch.rows for batch in RowBatches(rows["train"], tokens=300, shuffle=False).epoch(0)]
    assert first == [batch.rows for batch in RowBatches(rows["train"], tokens=300, shuffle=False, seed=5).epoch(3)]


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(rows, world, packed):
    options = {"tokens": 100, "packed": packed, "seed": 1}
    alone = RowBatches(rows["train"], **options)
    ranks = [RowBatches(rows["train"], **options, rank=rank, world=world) for rank in range(world)]
    stood_in = short = 0
    for step in range(alone.steps(0)):
        whole, parts = alone.batch(0, step), [rank.batch(0, step) for rank in ranks]
        assert sorted(whole.rows) == sorted(row for part in parts if part.weight for row in part.rows)
        assert {part.total for part in parts} == {whole.count} and sum(part.count for part in parts) == whole.count
        assert all(part.rows for part in parts)
        stood_in += sum(part.weight == 0 for part in parts)
        short += max(0, world - len(whole.rows))
        assert max(part.count for part in parts) - min(part.count for part in parts) <= 1
    assert stood_in == short  # only where a batch has fewer rows than there are ranks
    assert short > 0 or world < 8


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80), tokens=st.integers(1, 200), most=st.integers(1, 9), packed=st.booleans()
)
def test_budgets_are_kept(rows, lengths, tokens, most, packed):
    batches = RowBatches(rows["train"], tokens=tokens, max_rows=most, packed=packed)
    lengths = np.sort(np.array(lengths))
    bounds = batches._bounds(lengths)
    assert bounds[0] == 0 and bounds[-1] == len(lengths)
    for start, stop in itertools.pairwise(bounds):
        assert 0 < stop - start <= most
        size = int(lengths[start:stop].sum()) if packed else (stop - start) * int(lengths[stop - 1])
        assert size <= tokens or stop - start == 1


def test_a_part_of_the_rows(rows):
    split = rows["train"]
    kept, held = holdout(split.keys, 0.2)
    seen = {
        name: sorted(row for batch in RowBatches(split, rows=part).epoch(0) for row in batch.rows)
        for name, part in (("kept", kept), ("held", held))
    }
    assert seen == {"kept": kept.tolist(), "held": held.tolist()}
    with pytest.raises(ValueError, match="no rows of split train"):
        RowBatches(split, rows=held[:0])


def test_scores_are_floats(scores):
    batch = RowBatches(scores["train"], tokens=200).batch(0, 0)
    assert batch.targets.dtype == torch.float32
    assert batch.targets.tolist() == [row / 4 for row in batch.rows]


def test_batches_travel_to_workers(rows):
    batches = RowBatches(rows["train"], tokens=300)
    batches.batch(0, 3)
    sent = pickle.dumps(RowBatches(rows["train"], tokens=300))
    same(pickle.loads(sent).batch(0, 3), batches.batch(0, 3))
    same(batches.batch(0, 3).to("cpu"), batches.batch(0, 3))


# Masking.


@pytest.mark.parametrize("packed", [False, True])
def test_masking_hides_some_tokens_and_is_the_same_each_time(rows, packed):
    split, roles = rows["train"], rows.card.tokenizer["roles"]
    options = {"tokens": 400, "packed": packed, "mask": Masking(rows.card, seed=1)}
    batches, plain = RowBatches(split, **options), RowBatches(split, tokens=400, packed=packed)
    hidden = masked = kept = ordinary = 0
    for step in range(batches.steps(0)):
        batch, clear = batches.batch(0, step), plain.batch(0, step)
        same(RowBatches(split, **options).batch(0, step), batch)
        where = batch.targets != IGNORE
        assert torch.equal(batch.targets[where], clear.ids[where])
        assert torch.equal(batch.ids[~where], clear.ids[~where])
        assert not torch.isin(clear.ids[where], torch.tensor([roles[role] for role in ("cls", "sep", "pad")])).any()
        assert batch.count == batch.total == int(where.sum())
        hidden += int(where.sum())
        ordinary += int((clear.segments.mask.sum() if not packed else clear.ids.numel()) - 2 * len(batch.rows))
        masked += int((batch.ids[where] == roles["mask"]).sum())
        kept += int((batch.ids[where] == clear.ids[where]).sum())
    assert 0.13 < hidden / ordinary < 0.19  # at least one a row, so a little above 0.15
    assert 0.75 < masked / hidden < 0.85 and 0.05 < kept / hidden < 0.15
    again = [batch.targets.tolist() for batch in RowBatches(split, **{**options, "mask": Masking(rows.card, seed=2)}).epoch(0)]
    assert again != [batch.targets.tolist() for batch in batches.epoch(0)]


def test_a_row_is_masked_alike_on_any_rank_and_otherwise_in_another_epoch(rows):
    split, mask = rows["train"], Masking(rows.card)
    alone = {}
    for epoch in (0, 1):
        for batch in RowBatches(split, tokens=300, mask=mask).epoch(epoch):
            for row, ids, real in zip(batch.rows, batch.ids, batch.segments.mask, strict=True):
                alone[epoch, row] = ids[real].tolist()
    batches = RowBatches(split, tokens=300, mask=mask, rank=1, world=2)
    for step in range(batches.steps(0)):
        batch = batches.batch(0, step)
        assert batch.total == RowBatches(split, tokens=300, mask=mask).batch(0, step).count
        for row, ids, real in zip(batch.rows, batch.ids, batch.segments.mask, strict=True):
            assert alone[0, row] == ids[real].tolist()
    assert sum(alone[0, row] != alone[1, row] for row in range(len(split))) > len(split) / 2


# Running text.


def stream_of(split):
    return split.read(0, split.tokens).tolist()


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_token_is_a_target_once_and_its_input_is_the_token_before(text, documents, shuffle):
    split = text["train"]
    whole, eot = stream_of(split), text.card.tokenizer["roles"]["eot"]
    batches = WindowBatches(split, length=64, tokens=500, shuffle=shuffle, documents=documents, seed=2)
    found = set()
    for batch in batches.epoch(1):
        assert batch.ids.shape[0] <= 7
        for row, (start, stop) in enumerate(batches.bounds(1, np.array(batch.rows)).tolist()):
            n = stop - start
            assert batch.targets[row, :n].tolist() == whole[start:stop]
            assert batch.ids[row, :n].tolist() == [eot, *whole][start:stop]
            assert (batch.targets[row, n:] == IGNORE).all()
            found.update(range(start, stop))
            if documents:
                starts = batch.segments.positions[row, :n] == 0
                assert starts[1:].tolist() == (batch.ids[row, 1:n] == eot).tolist()  # each document begins with an end
        assert batch.total == batch.count == int((batch.targets != IGNORE).sum())
    assert len(found) == split.tokens == sum(batch.count for batch in batches.epoch(1))


def test_windows_move_from_epoch_to_epoch_and_resume_anywhere(text):
    def make():
        return WindowBatches(text["train"], length=50, tokens=400, seed=4)

    first = list(make().epoch(0))
    for step in (len(first) - 1, 3):
        same(make().batch(0, step), first[step])
    assert make()._lead(0) != make()._lead(1)
    assert [batch.rows for batch in first] != [batch.rows for batch in make().epoch(1)]


@pytest.mark.parametrize("mask", [False, True])
def test_ranks_share_a_batch_of_windows(text, mask):
    split = text["train"]
    options = {"length": 40, "tokens": 200, "mask": Masking(text.card) if mask else None}
    alone, ranks = WindowBatches(split, **options), [WindowBatches(split, **options, rank=rank, world=4) for rank in range(4)]
    for step in range(alone.steps(0)):
        whole, parts = alone.batch(0, step), [rank.batch(0, step) for rank in ranks]
        assert {part.total for part in parts} == {whole.total} == {whole.count}
        assert sum(part.count for part in parts) == whole.count
        assert {part.ids.shape[1] for part in parts} == {whole.ids.shape[1]}
        for part in parts:
            for row, ids in zip(part.rows, part.ids, strict=True):
                if part.weight:
                    assert torch.equal(ids, whole.ids[whole.rows.index(row)])
            assert part.weight or (part.targets == IGNORE).all()


def test_masked_windows_leave_ends_alone(text):
    eot, mask = text.card.tokenizer["roles"]["eot"], text.card.tokenizer["roles"]["mask"]
    for batch in WindowBatches(text["train"], length=100, tokens=400, mask=Masking(text.card)).epoch(0):
        assert not (batch.targets == eot).any()
        assert batch.count == batch.total > 0 and (batch.ids == mask).any()


def test_a_part_of_the_documents(text):
    split = text["train"]
    _, held = holdout(split.keys, 0.3)
    expected = [token for row in held for token in split.row(int(row)).tolist()]
    stream = Stream(split, held)
    assert len(stream) == len(expected) and stream.read(np.array([7]), np.array([893])).tolist() == expected[7:900]
    batches = WindowBatches(split, length=32, tokens=64, rows=held, shuffle=False)
    assert [token for batch in batches.epoch(0) for token in batch.targets.flatten().tolist() if token != IGNORE] == expected


def test_a_text_shorter_than_a_window(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", valid=0, test=0)
    batches = WindowBatches(TokenFiles(tmp_path / "out")["train"], length=1024)
    assert batches.steps(0) == 1
    batch = batches.batch(0, 0)
    assert batch.ids.tolist() == [[261, *b"short"]] and batch.targets.tolist() == [[*b"short", 261]] and batch.segments is None


def test_wrong_uses_are_named(rows, text, scores):
    with pytest.raises(ValueError, match="use RowBatches"):
        WindowBatches(rows["train"], length=8)
    with pytest.raises(ValueError, match="use WindowBatches"):
        RowBatches(text["train"])
    with pytest.raises(ValueError, match="rank=2 is not below world=2"):
        RowBatches(rows["train"], rank=2, world=2)
    with pytest.raises(ValueError, match="tokens=0"):
        RowBatches(rows["train"], tokens=0)
