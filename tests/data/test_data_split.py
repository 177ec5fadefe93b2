"""Splits follow the text and never the order; documents lose nothing on the way; chance is a function of its salts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tokmix.data.order import Shuffle, mix, number  # noqa: E402
from tokmix.data.prepare.documents import MARKER, Survey, cuts  # noqa: E402
from tokmix.data.prepare.pipeline import prepare  # noqa: E402
from tokmix.data.split import holdout, overlap, place, shared, split_of_name, split_of_path, text_key  # noqa: E402
from tokmix.data.tokens import TokenFiles  # noqa: E402
from tokmix.training.settings import Settings  # noqa: E402
from tokmix.training.task import TrainingTask  # noqa: E402


def table(path, rows, header="text\tlabel"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n" + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def decoded(folder):
    """split -> the texts in it"""
    files = TokenFiles(folder)
    tokenizer = files.tokenizer()
    return {name: [tokenizer.decode(files[name].row(i).tolist()) for i in range(len(files[name]))] for name in files.splits}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002", "train"),
        ("validation_matched", "valid"),
        ("my-dev", "valid"),
        ("TEST2", "test"),
        ("contest", None),
        ("developers", None),
        ("data", None),
    ],
)
def test_split_names(name, split):
    assert split_of_name(name) == split


def test_split_of_a_path_is_told_by_the_nearest_name():
    assert split_of_path("train/part-1.csv") == "train"
    assert split_of_path("train/dev.csv") == "valid"
    assert split_of_path("data/all.csv") is None


def test_what_counts_as_the_same_text():
    assert text_key("A  Good\tfilm ") == text_key("a good film") == text_key("\uff21 good film")
    assert text_key("a good film") != text_key("a good film!")
    assert text_key("a", "b") != text_key("b", "a")
    assert text_key("a b", "c") != text_key("a", "b c")


@given(st.integers(0, 2**64 - 1), st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0, 0.1))
def test_more_valid_never_moves_a_text_into_or_out_of_test(key, valid, test, more):
    assert (place(key, valid, test) == "test") == (place(key, valid + more, test) == "test")
    if place(key, valid, test) == "valid":
        assert place(key, valid + more, test) == "valid"


def test_equal_texts_share_a_split_and_order_does_not_matter(tmp_path):
    rng = random.Random(0)
    rows = [(f"text number {rng.randrange(200)} {'again' * (i % 2)}", "ab"[i % 2]) for i in range(900)]
    prepare(table(tmp_path / "a.tsv", rows), tmp_path / "one", tokenizer="bytes")
    rng.shuffle(rows)
    shouted = [(text.upper() if i % 5 == 0 else text, label) for i, (text, label) in enumerate(rows)]
    prepare(table(tmp_path / "b.tsv", shouted), tmp_path / "two", tokenizer="bytes")
    one, two = decoded(tmp_path / "one"), decoded(tmp_path / "two")
    assert set(one) == {"train", "valid", "test"}
    for split in one:
        assert sorted(text.lower() for text in one[split]) == sorted(text.lower() for text in two[split])
        assert 0 < len(one[split]) < 900
    assert TokenFiles(tmp_path / "one").card.overlap == {"valid in train": 0, "test in train": 0, "test in valid": 0}
    assert not set(one["train"]) & set(one["valid"]) and not set(one["train"]) & set(one["test"])


def test_given_splits_are_kept_and_their_overlap_counted(tmp_path):
    train = [(f"row {i}", "ab"[i % 2]) for i in range(20)]
    table(tmp_path / "d" / "train.tsv", train)
    table(tmp_path / "d" / "dev.tsv", [("ROW  3", "a"), ("row 3", "b"), ("new", "a"), ("also new", "a")])
    table(tmp_path / "d" / "test.tsv", [("new", "a"), ("newest", "b")])
    card = prepare(tmp_path / "d", tmp_path / "out", tokenizer="bytes")
    assert {name: split.rows for name, split in card.splits.items()} == {"train": 20, "valid": 4, "test": 2}
    assert card.overlap == {"valid in train": 2, "test in train": 0, "test in valid": 1}
    assert any("2 rows of valid (50 %)" in warning for warning in card.warnings)
    assert decoded(tmp_path / "out")["train"] == [text for text, _ in train]


def test_a_split_column_is_kept(tmp_path):
    rows = [(f"row {i}", "ab"[i % 2], ["train", "validation", "test"][i % 3]) for i in range(12)]
    card = prepare(table(tmp_path / "a.tsv", rows, "text\tlabel\tsplit"), tmp_path / "out", tokenizer="bytes")
    assert {name: split.rows for name, split in card.splits.items()} == {"train": 4, "valid": 4, "test": 4}
    assert card.split_by == "splits given by column split"


def test_groups_stay_together(tmp_path):
    rows = [(f"row {i}", "ab"[i % 2], f"file {i // 10}") for i in range(400)]
    card = prepare(table(tmp_path / "a.tsv", rows, "text\tlabel\tfile"), tmp_path / "out", tokenizer="bytes", group="file", label="label")
    found = {split: {int(text.split()[1]) // 10 for text in texts} for split, texts in decoded(tmp_path / "out").items()}
    assert len(found) == 3
    assert sum(map(len, found.values())) == 40
    assert card.split_by == "split by a hash of file"


@pytest.mark.parametrize("task", ["classify", "lm"])
def test_groups_stay_together_where_a_part_of_train_is_held_out(tmp_path, task):
    rows = [(f"row {i}", "ab"[i % 2], f"file {i // 10}") for i in range(400)]
    source = table(tmp_path / "a.tsv", rows, "text\tlabel\tfile")
    prepare(source, tmp_path / "out", tokenizer="bytes", group="file", label="label", task=task)
    work = TrainingTask(TokenFiles(tmp_path / "out"), Settings.of(None, {"train.holdout": 0.2}))
    texts = np.array(decoded(tmp_path / "out")["train"])
    kept, held = ({int(text.split()[1]) // 10 for text in texts[rows]} for rows in (work.kept, work.held))
    assert kept and held and not kept & held
    work.files.verify()


def test_without_groups_texts_stay_together(tmp_path):
    rows = [(f"row {i}", "ab"[i % 2]) for i in range(40)]
    prepare(table(tmp_path / "a.tsv", rows), tmp_path / "out", tokenizer="bytes")  # as every folder prepared before there were groups
    train = TokenFiles(tmp_path / "out")["train"]
    assert not list((tmp_path / "out").glob("*.groups.bin")) and train.groups.tolist() == train.keys.tolist()


def test_groups_that_given_splits_part_are_counted(tmp_path):
    rows = [(f"row {i}", "ab"[i % 2], f"u{i % 5}", ["train", "valid", "test"][i % 3 if i % 5 < 2 else 0]) for i in range(60)]
    header = "text\tlabel\twho\tsplit"
    settings = {"tokenizer": "bytes", "group": "who", "label": "label"}
    card = prepare(table(tmp_path / "a.tsv", rows, header), tmp_path / "out", **settings)
    assert [warning for warning in card.warnings if "who" in warning] == [
        "2 values of who are in more than one split: splits that are given are kept; resplit=true splits by who instead"
    ]
    apart = [(*row[:2], f"{row[2]} {row[3]}", row[3]) for row in rows]
    for name, source, more in (("apart", apart, {}), ("anew", rows, {"resplit": True})):
        card = prepare(table(tmp_path / f"{name}.tsv", source, header), tmp_path / name, **settings, **more)
        assert not any("who" in warning for warning in card.warnings)


def test_a_lone_train_file_is_divided_and_an_unlabelled_test_file_is_left_out(tmp_path):
    rows = [(f"row {i}", "ab"[i % 2]) for i in range(200)]
    assert set(prepare(table(tmp_path / "train.tsv", rows), tmp_path / "one", tokenizer="bytes").splits) == {"train", "valid", "test"}
    table(tmp_path / "d" / "train.tsv", rows), table(tmp_path / "d" / "valid.tsv", [("x", "a")])
    table(tmp_path / "d" / "test.tsv", [("1",), ("2",)], "text")
    card = prepare(tmp_path / "d", tmp_path / "two", tokenizer="bytes")
    assert set(card.splits) == {"train", "valid"}
    assert card.warnings == ["test.tsv has no column 'label': left out"]


def test_a_label_seen_only_outside_train_is_an_error(tmp_path):
    table(tmp_path / "d" / "train.tsv", [("one", "yes"), ("two", "no")]), table(tmp_path / "d" / "test.tsv", [("x", "yes"), ("y", "nope")])
    with pytest.raises(ValueError, match="test.tsv, line 3: label 'nope' does not occur in training; known: yes, no, did you mean 'no'"):
        prepare(tmp_path / "d", tmp_path / "out")


def test_splits_without_train_or_with_strays_are_errors(tmp_path):
    table(tmp_path / "d" / "valid.tsv", [("one", "yes")]), table(tmp_path / "d" / "test.tsv", [("x", "no")])
    with pytest.raises(ValueError, match="no train split"):
        prepare(tmp_path / "d", tmp_path / "out")
    table(tmp_path / "d" / "more.tsv", [("one", "yes")])
    with pytest.raises(ValueError, match="more.tsv is in no split"):
        prepare(tmp_path / "d", tmp_path / "out")


def test_holdout_keeps_equal_texts_together_and_is_near_its_share():
    keys = np.array([text_key(f"text {i % 5000}") for i in range(10000)], dtype=np.uint64)
    kept, held = holdout(keys, 0.1)
    assert sorted([*kept, *held]) == list(range(10000))
    assert 800 < len(held) < 1200
    assert not set(keys[kept].tolist()) & set(keys[held].tolist())
    assert holdout(keys, 0.1)[1].tolist() == held.tolist()
    assert holdout(keys, 0.1, seed=1)[1].tolist() != held.tolist()
    assert len(holdout(keys, 0.0)[1]) == 0
    # Independent of the first split: the share also holds among what `place` left in train.
    train = np.array([key for key in keys if place(int(key), 0.1, 0.1) == "train"], dtype=np.uint64)
    assert 0.08 < len(holdout(train, 0.1)[1]) / len(train) < 0.12


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_overlap_counts_rows(train, valid, chunk):
    keys = {"train": np.array(train, dtype=np.uint64), "valid": np.array(valid, dtype=np.uint64)}
    assert overlap(keys, chunk) == {"valid in train": sum(key in train for key in valid)}
    assert shared(keys, chunk) == len(set(train) & set(valid))


# Plain text.


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["word ", "a\n", "\n", "\n\n", "   \n", MARKER, "longer than the rest of them", "é"]), max_size=60),
    st.integers(4, 40),
    st.integers(1, 7),
)
def test_cuts_lose_nothing_and_stay_small(words, size, step):
    text = "".join(words)
    found = list(cuts((text[i : i + step] for i in range(0, len(text), step)), size))
    assert all(0 < len(cut.text) <= size for cut in found)
    whole: list[str] = []
    for cut in found:
        if cut.first:
            whole.append("")
        whole[-1] += cut.text
    expected = [document.strip("\n") for document in text.split(MARKER)]
    expected[-1] = text.split(MARKER)[-1].lstrip("\n")
    if size >= len(text):  # otherwise newlines before a marker may already have been handed on with an earlier piece
        assert whole == [document for document in expected if document]
    assert "".join(whole).replace("\n", "") == "".join(expected).replace("\n", "")
    assert len(whole) <= len(expected)


def test_the_unit_of_splitting_follows_from_the_documents(tmp_path):
    survey = Survey()
    for cut in cuts([("some words here. " * 20 + MARKER) * 300]):
        survey.see(cut)
    assert survey.documents == 300 and survey.block() is None
    survey = Survey()
    for cut in cuts(["a paragraph of some length\n\n" * 3000]):
        survey.see(cut)
    assert survey.documents == 1 and survey.block() == 4096


def test_documents_go_to_splits_whole(tmp_path):
    documents = [f"document {i} " + "word " * (i % 50) + f"\nends {i}" for i in range(300)]
    (tmp_path / "a.txt").write_text(f"\n{MARKER}\n".join(documents), encoding="utf-8")
    card = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", valid=0.2)
    found = decoded(tmp_path / "out")
    assert set(found) == {"train", "valid", "test"}
    assert sorted(text for texts in found.values() for text in texts) == sorted(documents)
    assert sum(split.bytes for split in card.splits.values()) == sum(len(text.encode()) for text in documents)
    assert sum(split.tokens for split in card.splits.values()) == sum(len(text.encode()) + 1 for text in documents)


def test_a_book_is_split_in_blocks_and_neighbours_stay_joined(tmp_path):
    paragraphs = [f"paragraph {i} " + "of a book " * 12 for i in range(2000)]
    text = "\n\n".join(paragraphs)
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    card = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes")
    found = decoded(tmp_path / "out")
    assert set(found) == {"train", "valid", "test"}
    assert sum(len(piece) for texts in found.values() for piece in texts) == len(text)
    for texts in found.values():
        assert all(piece in text for piece in texts)
    assert max(len(piece) for piece in found["train"]) > 2 * 4096  # several blocks in a row are one document
    assert "blocks" in card.split_by


def test_rows_of_a_table_are_documents_for_a_language_model(tmp_path):
    rows = [(f"row number {i}", "ab"[i % 2]) for i in range(300)]
    card = prepare(table(tmp_path / "a.tsv", rows), tmp_path / "out", tokenizer="bytes", task="lm")
    assert card.task == "lm" and card.stream and not card.labels
    assert sorted(text for texts in decoded(tmp_path / "out").values() for text in texts) == sorted(text for text, _ in rows)


def test_everything_can_be_put_into_one_split(tmp_path):
    rows = [(f"row number {i}", "ab"[i % 2]) for i in range(50)]
    card = prepare(table(tmp_path / "a.tsv", rows), tmp_path / "out", tokenizer="bytes", into="test", labels=["a", "b", "c"])
    assert {name: split.rows for name, split in card.splits.items()} == {"test": 50}
    assert card.labels == ["a", "b", "c"]


# Chance.


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(), st.integers(0, 5))
def test_a_shuffle_is_a_permutation_and_can_be_asked_anywhere(n, seed, epoch):
    shuffle = Shuffle(n, seed, epoch)
    whole = shuffle(np.arange(n))
    assert sorted(whole.tolist()) == list(range(n))
    assert shuffle(np.arange(n)[n // 2 :]).tolist() == whole[n // 2 :].tolist()


def test_shuffles_differ_and_leave_no_order():
    n = 5000
    first, second, other = Shuffle(n, 0, 0)(np.arange(n)), Shuffle(n, 0, 1)(np.arange(n)), Shuffle(n, 1, 0)(np.arange(n))
    assert (first == second).mean() < 0.01 and (first == other).mean() < 0.01
    for order in (first, second, other):
        assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.06
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.06
    # Every place can receive every item: over many seeds, what stands first is spread evenly.
    counts = np.bincount([int(Shuffle(10, seed)(np.array([0]))[0]) for seed in range(2000)], minlength=10)
    assert counts.min() > 140 and counts.max() < 260


def test_mix_takes_one_salt_or_many():
    rows = np.array([5, 6, 7])
    assert mix(rows, 1, 2).tolist() == [int(mix(int(row), 1, 2)) for row in rows]
    assert mix(np.zeros(3), rows).tolist() == [number(5), number(6), number(7)]
    assert number(1, 2) != number(2, 1) and number(-1) != number(1)
