"""JSON arrays, texts sorted into folders by class, and splits that come without labels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tests.data.test_data_read import ROWS, read, write
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.read.files import Text, open_source
from tokmix.data.tokens import TokenFiles

OBJECTS = [{"text": text, "label": label} for text, label in ROWS]


@pytest.mark.parametrize(
    "written",
    [json.dumps(OBJECTS), json.dumps(OBJECTS, indent=2), "\n[" + ",\n".join(map(json.dumps, OBJECTS)) + "\n]\n"],
    ids=["one line", "indented", "an object a line"],
)
def test_a_json_array_gives_its_objects(tmp_path, written):
    assert read(write(tmp_path / "a.json", written))[1] == ROWS
    assert read(write(tmp_path / "b.json.gz", gzip.compress(written.encode())))[1] == ROWS


def test_a_json_array_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("tokmix.data.read.lines.CHUNK", 7)  # every place of the file is the end of a piece once
    for indent in (None, 3):
        assert read(write(tmp_path / "a.json", json.dumps(OBJECTS, indent=indent)))[1] == ROWS


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[]", "a.json is an empty array"),
        ('[{"text": "a"}, 7]', "a.json, object 2: int where an object"),
        ('[{"text": "a", "label": 1}, {"text": "b"}]', "object 2: has no 'label'"),
        ('[{"text": "a", "label": 1} {"text": "b"}]', "object 1: not JSON .a comma or ] should follow"),
        ('[{"text": "a", "label": 1}', "object 1: not JSON"),
        ('[{"text": "a", "label": 1}, {"text": ', "object 2: not JSON"),
        ('[{"text": "a", "label": 1},]', "object 2: not JSON"),
        ('[{"text": "a", "label": 1}]{}', "more behind the end of the array"),
        ('{\n "text": "a"\n}', "line 1: not JSON"),
    ],
)
def test_a_broken_json_array_is_one_line(tmp_path, written, message):
    with pytest.raises(ValueError, match=message) as caught:
        prepare(write(tmp_path / "a.json", written), tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def sort_texts(folder, splits, count=12):
    for split in splits:
        for i in range(count):
            for label in ("neg", "pos"):
                write(folder / split / label / f"{i}.txt", f"{label} words {i}\nof {split or 'all'}\n")
    return folder


def test_texts_sorted_into_folders_by_class_are_a_table(tmp_path):
    plan, rows = read(sort_texts(tmp_path / "a", [""]))
    assert (plan.task, plan.labels, plan.given, len(rows)) == ("classify", ["neg", "pos"], False, 24)
    assert rows[0] == ("neg words 0\nof all\n", "neg")


def test_their_splits_are_kept_and_what_has_no_class_is_left_out(tmp_path):
    folder = sort_texts(tmp_path / "a", ["train", "test"], 60)
    write(folder / "README.txt", "about these texts")
    write(folder / "train" / "unsup" / "0.txt", "a text without a class")
    card = prepare(folder, tmp_path / "out", vocab=100)
    unsup = str(Path("train", "unsup", "0.txt"))
    assert card.warnings[:2] == [
        "left out: 1 files outside the folders of classes (README.txt)",
        f"left out: 1 files without a class ({unsup})",
    ]
    assert {name: split.labels for name, split in card.splits.items()} == {name: {"neg": 60, "pos": 60} for name in ("train", "test")}
    assert card.columns["text"] == ("text",) and card.columns["target"] == "label" and len(card.source) == 2
    again = prepare(folder, tmp_path / "again", vocab=100)
    assert card == again
    write(folder / "train" / "pos" / "0.txt", "another text")
    assert prepare(folder, tmp_path / "changed", vocab=100).source != card.source
    assert TokenFiles(tmp_path / "out")["test"].targets.tolist().count(1) == 60


def is_plain(folder):
    return all(isinstance(part, Text) for part in open_source(folder))


def test_other_folders_of_text_stay_plain_text(tmp_path):
    deep = [write(tmp_path / "a" / name, "some words\n" * 50) for name in ("x/1.txt", "x/2.txt", "y/1.txt", "y/deeper/2.txt")]
    assert len(open_source(tmp_path / "a")) == len(deep) and is_plain(tmp_path / "a")
    for i in range(3):  # a folder for every text
        write(tmp_path / "b" / f"{i}" / "text.txt", "some words\n" * 50)
    assert is_plain(tmp_path / "b")
    write(tmp_path / "c" / "train" / "1.txt", "some words\n" * 50), write(tmp_path / "c" / "valid" / "1.txt", "other words\n" * 50)
    assert is_plain(tmp_path / "c")
    card = prepare(sort_texts(tmp_path / "d", [""]), tmp_path / "out", task="lm", tokenizer="bytes")
    assert card.task == "lm" and card.stream


def test_what_is_wrong_with_a_text_names_its_file(tmp_path):
    folder = sort_texts(tmp_path / "a", ["train", "test"])
    write(folder / "train" / "pos" / "3.txt", b"caf\xe9")
    with pytest.raises(ValueError, match=r"pos.3\.txt, line 1: byte 0xe9"):
        prepare(folder, tmp_path / "out")
    write(folder / "train" / "pos" / "3.txt", b"")
    assert prepare(folder, tmp_path / "out", vocab=100).left_out == {"no text": 1}
    write(folder / "test" / "odd" / "3.txt", "x"), write(folder / "test" / "odd" / "4.txt", "y")
    with pytest.raises(ValueError, match=r"odd.3\.txt: label 'odd' does not occur in training"):
        prepare(folder, tmp_path / "other")


@pytest.mark.parametrize("sign", ["-1", "", "-"])
def test_a_split_without_labels_is_left_out_and_said(tmp_path, sign):
    def table(labels):
        return "text\tlabel\n" + "".join(f"words {i} {label}\t{label}\n" for i, label in enumerate(labels))

    write(tmp_path / "a" / "train.tsv", table("0101" * 9)), write(tmp_path / "a" / "valid.tsv", table("0110"))
    write(tmp_path / "a" / "test.tsv", table([sign] * 5))
    card = prepare(tmp_path / "a", tmp_path / "out", vocab=100)
    assert {name: split.rows for name, split in card.splits.items()} == {"train": 36, "valid": 4}
    assert [f"test.tsv has no labels ('label' is {sign!r} throughout): left out"] == [w for w in card.warnings if "test.tsv" in w]


def test_a_class_called_minus_one_is_a_class(tmp_path):
    write(tmp_path / "a" / "train.csv", "text,label\n" + "".join(f"row {i},{(-1) ** i}\n" for i in range(40)))
    write(tmp_path / "a" / "test.csv", "text,label\nother row,-1\none more,-1\n")
    card = prepare(tmp_path / "a", tmp_path / "out", vocab=100)
    assert card.labels == ["-1", "1"] and card.splits["test"].labels == {"-1": 2, "1": 0}
