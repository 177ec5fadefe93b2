"""Files as people have them: each is read right, or one line says what would help."""

from __future__ import annotations

import io
import json
import random
import re
import resource
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tokmix.data.card import Card
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.read import stdin
from tokmix.data.split import place, text_key
from tokmix.data.tokens import TokenFiles

WORDS = ["the", "a", "one", "film", "day", "road", "with", "of", "in", "house", "was", "it", "and", "so", "then", "blue", "red"]


def text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=8))


def table(labels: list[object], between: str = ",", header: bool = True) -> str:
    draw = random.Random(0)
    lines = [f"text{between}label"] if header else []
    return "\n".join([*lines, *(f"{text(draw)}{between}{label}" for label in labels)]) + "\n"


def read(path: Path, content: str | bytes, out: str = "out", **settings: object) -> Card:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return prepare(path, path.parent / out, tokenizer="bytes", **settings)


def rows(card: Card) -> int:
    return sum(split.rows for split in card.splits.values())


def said(card: Card, line: str) -> bool:
    return any(line in warning for warning in card.warnings)


TWO = ["x", "y"] * 30


def test_integer_prices_are_scores_and_the_line_says_how_to_change_it(tmp_path: Path) -> None:
    prices = [random.Random(i).randint(3, 9000) for i in range(400)]
    card = read(tmp_path / "a.csv", table(prices))
    assert card.task == "regress" and said(card, "distinct whole numbers from") and said(card, "read as scores: task=classify")


def test_numbers_that_count_classes_are_classes(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([i % 77 for i in range(600)]))
    assert card.task == "classify" and len(card.labels) == 77
    assert said(card, "77 distinct whole numbers from 0 to 76, read as classes: task=regress")


def test_ids_as_labels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"200 distinct values in 200 rows, as ids or texts have: name another column with label="):
        read(tmp_path / "a.csv", table([f"user{i:04d}" for i in range(200)]))
    assert len(read(tmp_path / "a.csv", table([f"user{i:04d}" for i in range(200)]), task="classify").labels) == 200


@pytest.mark.parametrize("spelled", ["{0},{1:02d}", "${0}.{1}", "{0}.{1} EUR", "{0}.{1} %"])
def test_numbers_in_another_spelling(spelled: str, tmp_path: Path) -> None:
    labels = [spelled.format(i, i % 100) for i in range(200)]
    with pytest.raises(
        ValueError, match=r"numbers that are not written as such, for instance .*: write them with a point and nothing else"
    ):
        read(tmp_path / "a.csv", table(labels, between=";"))


def test_numbers_that_every_row_has_another_of(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(list(range(1, 201))))
    assert card.task == "regress" and said(card, "every row has another label: an id teaches nothing")


def test_labels_that_differ_in_case_or_blanks(tmp_path: Path) -> None:
    content = table(["Sport", "sport", "news", "S port"] * 30)
    card = read(tmp_path / "a.csv", content)
    assert len(card.labels) == 4 and said(card, "differ in case or blanks alone and are 3 classes: merge_labels=true")
    (tmp_path / "again").mkdir()
    merged = read(tmp_path / "again" / "a.csv", content, merge_labels=True)
    assert len(merged.labels) == 2 and said(merged, "are one class")
    assert sum(split.labels["news"] for split in merged.splits.values()) == 30


def test_one_text_with_two_labels(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(TWO) + "the same words,x\nThe same  words,y\n")
    assert said(card, "1 text has different labels in different rows")


def test_tiny_classes_and_a_lopsided_split(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(["common"] * 297 + ["rare"] * 3), valid=0.0, test=0.0)
    assert said(card, "1 class has fewer than 5 rows in train (rare 3)")
    assert said(card, "'common' is 99 % of train: always saying it has that accuracy; look at macro_f1")


def test_empty_label_cells_are_left_out_and_counted(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([*TWO, "", " ", ""]))
    assert rows(card) == 60 and card.left_out == {"no label": 3} and said(card, "left out: 3 rows with no label")


@pytest.mark.parametrize("between", ["|", ";", "\t", ","])
def test_separators_are_seen_from_the_first_line(between: str, tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(TWO, between))
    assert rows(card) == 60 and card.labels == ["x", "y"]


@pytest.mark.parametrize(("between", "option"), [("~", "~"), ("|", "pipe"), ("\t", "tab")])
def test_a_separator_can_be_named(between: str, option: str, tmp_path: Path) -> None:
    assert rows(read(tmp_path / "a.csv", table(TWO, between), separator=option)) == 60


def test_a_separator_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="separator='ab' should be one character, or one of tab, comma"):
        read(tmp_path / "a.csv", table(TWO), separator="ab")
    with pytest.raises(ValueError, match="separator=';' parts the cells of csv, and a.jsonl is none"):
        read(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n', separator=";")


def test_no_header(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="header=text,label"):
        read(tmp_path / "a.csv", table(TWO, header=False))
    assert rows(read(tmp_path / "a.csv", table(TWO, header=False), header="text,label")) == 60


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_wide_characters(encoding: str, tmp_path: Path) -> None:
    content = table([*TWO, "été"]).encode(encoding)
    card = read(tmp_path / "a.csv", content, **({} if encoding == "utf-16" else {"encoding": encoding}))
    assert rows(card) == 61 and "été" in card.labels


def test_latin_1_is_refused_with_the_option_that_helps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 62: byte 0xe9 is not utf-8; name the file's encoding, for instance encoding=latin-1"):
        read(tmp_path / "a.csv", table([*TWO, "été"]).encode("latin-1"))
    assert "été" in read(tmp_path / "a.csv", table([*TWO, "été"]).encode("latin-1"), encoding="latin-1").labels


def test_three_rows(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(["x", "y", "x"]))
    assert rows(card) == 3 and said(card, "3 rows are too few to learn from")


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, content in enumerate((table(TWO), table(TWO, "\t"), "".join(json.dumps({"text": f"{w} x", "label": w}) + "\n" for w in WORDS))):
        stdin.spooled.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        assert rows(prepare("-", tmp_path / str(i), tokenizer="bytes")) == (60 if i < 2 else len(WORDS))
    stdin.spooled.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(ValueError, match="standard input is empty"):
        prepare("-", tmp_path / "none")
    stdin.spooled.cache_clear()


def test_a_workbook(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["text", "label"])
    for label in [1, 2.0, None] * 20:
        book.active.append([text(random.Random()), label])
    book.save(tmp_path / "a.xlsx")
    card = prepare(tmp_path / "a.xlsx", tmp_path / "out", tokenizer="bytes")
    assert card.labels == ["1", "2"] and rows(card) == 40 and card.left_out == {"no label": 20}
    other = book.create_sheet("more")
    other.append(["text", "label"])
    other.append(["some words", "z"])
    book.save(tmp_path / "two.xlsx")
    with pytest.raises(ValueError, match="two.xlsx holds 2 tables .*say which with sheet=NAME"):
        prepare(tmp_path / "two.xlsx", tmp_path / "none")
    assert prepare(tmp_path / "two.xlsx", tmp_path / "first", sheet="Sheet", tokenizer="bytes").labels == ["1", "2"]
    (tmp_path / "bad.xlsx").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="is not an .xlsx workbook"):
        prepare(tmp_path / "bad.xlsx", tmp_path / "none")


def changed_sheet(path: Path, out: Path, change: Callable[[bytes], bytes]) -> Path:
    with zipfile.ZipFile(path) as packed, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name in packed.namelist():
            made.writestr(name, change(packed.read(name)) if name.endswith("sheet1.xml") else packed.read(name))
    return out


def test_workbooks_of_other_programs_and_those_made_to_harm(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["text", "label"], *([text(random.Random()), label] for label in ["a", "b"] * 30)]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    unsized = changed_sheet(tmp_path / "a.xlsx", tmp_path / "u.xlsx", lambda sheet: re.sub(rb"<dimension[^>]*>", b"", sheet))
    assert rows(prepare(unsized, tmp_path / "out", tokenizer="bytes")) == 60
    bombs: dict[str, Callable[[bytes], bytes]] = {
        "unpacks to .* bytes, more than 200 times its size": lambda sheet: sheet + b" " * 2**27,
        "not an .xlsx workbook, or a damaged one": lambda sheet: sheet[: len(sheet) // 2],
    }
    for words, change in bombs.items():
        with pytest.raises(ValueError, match=words):
            prepare(changed_sheet(tmp_path / "a.xlsx", tmp_path / "b.xlsx", change), tmp_path / "none")


def test_a_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute('create table "my rows" (id integer, text text, label text)')
        base.executemany('insert into "my rows" values (?, ?, ?)', [(i, text(random.Random(i)), TWO[i]) for i in range(60)])
    base.close()
    assert rows(prepare(tmp_path / "a.db", tmp_path / "out", tokenizer="bytes")) == 60
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute("create view half as select text, label from 'my rows' where id < 30")
    base.close()
    with pytest.raises(ValueError, match=r"a.db holds 2 tables \(half, my rows\): say which with sheet=NAME"):
        prepare(tmp_path / "a.db", tmp_path / "none")
    assert rows(prepare(tmp_path / "a.db", tmp_path / "view", sheet="half", tokenizer="bytes")) == 30
    (tmp_path / "bad.db").write_bytes(b"no database, " * 100)
    with pytest.raises(ValueError, match="cannot be read as an SQLite database"):
        prepare(tmp_path / "bad.db", tmp_path / "none")


CELLS = {"bar": ["a|b", "a", "b|c", "c"], "json": ['"[""a"", ""b""]"', '"[""a""]"', '"[""b"", ""c""]"', "c"]}
CELLS["python"] = ["\"['a', 'b']\"", "['a']", "\"['b', 'c']\"", "c"]


@pytest.mark.parametrize("kind", CELLS)
def test_several_labels_a_row(kind: str, tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(CELLS[kind] * 15), valid=0.0, test=0.0)
    assert card.task == "multilabel" and card.labels == ["a", "b", "c"]
    assert card.splits["train"].labels == {"a": 30, "b": 30, "c": 30}
    targets = TokenFiles(tmp_path / "out")["train"].targets
    assert targets is not None and targets.shape == (60, 3) and targets[:4].tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_a_bar_that_parts_nothing_is_a_letter(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table(["News|Sport", "Culture|Arts", "Weather"] * 20))
    assert card.task == "classify" and card.labels == ["Culture|Arts", "News|Sport", "Weather"]


def test_labels_parted_by_another_character(tmp_path: Path) -> None:
    content = table(["a;b", "a", "b;c", "c"] * 15, ",")
    card = read(tmp_path / "a.csv", content, label_separator=";")
    assert card.task == "multilabel" and card.labels == ["a", "b", "c"]


def test_fasttext_files(tmp_path: Path) -> None:
    lines = ["__label__a __label__b some words", "__label__a other words", "__label__b , more"] * 20
    card = read(tmp_path / "a.txt", "\n".join(lines) + "\n")
    assert card.task == "multilabel" and card.labels == ["a", "b"] and rows(card) == 60
    (tmp_path / "one").mkdir()
    single = read(tmp_path / "one" / "a.txt", "\n".join(line.replace("__label__a __label__b", "__label__c") for line in lines))
    assert single.task == "classify" and single.labels == ["a", "b", "c"]


def test_json_lists_of_labels(tmp_path: Path) -> None:
    rows_of = [{"text": text(random.Random(i)), "labels": [["a", "b"], [], ["b"]][i % 3]} for i in range(60)]
    card = read(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows_of), valid=0.0, test=0.0)
    assert card.task == "multilabel" and card.splits["train"].labels == {"a": 20, "b": 40} and rows(card) == 60
    with pytest.raises(ValueError, match="several labels a row: task=multilabel"):
        prepare(tmp_path / "a.jsonl", tmp_path / "none", task="classify")


def test_texts_of_a_hundred_kilobytes(tmp_path: Path) -> None:
    long = ["word " * 20_000, "x" * 100_000]
    content = "text,label\n" + "".join(f"{long[i % 2]}{i},{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "a.csv").write_text(content)
    card = prepare(tmp_path / "a.csv", tmp_path / "out", valid=0.0, test=0.0)
    assert card.splits["train"].truncated == 10 and card.splits["train"].rows == 20


@pytest.mark.slow
def test_a_table_of_800_000_rows_and_130_classes_takes_little_memory(tmp_path: Path) -> None:
    draw = random.Random(0)
    with open(tmp_path / "a.csv", "w") as file:
        file.write("text,label\n")
        for i in range(800_000):
            file.write(f"{text(draw)} {i % 5000},class {i % 130}\n")
    code = f"from tokmix.data.prepare.pipeline import prepare; prepare({str(tmp_path / 'a.csv')!r}, {str(tmp_path / 'out')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20  # KiB
    assert len(Card.read(tmp_path / "out").labels) == 130


@pytest.mark.parametrize("written", ["NaN", "nan", "<NA>", "NaT"])
def test_cells_that_pandas_wrote_for_nothing_are_empty(written: str, tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([*TWO, written, written]))
    assert card.labels == ["x", "y"] and card.left_out == {"no label": 2}


@pytest.mark.parametrize("written", ["N/A", "null", "None", "-"])
def test_a_label_that_may_stand_for_none_is_reported(written: str, tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([*TWO, *[written] * 6]))
    assert len(card.labels) == 3 and said(card, f"6 rows have the label {written!r}, and it is a class")


@pytest.mark.parametrize("price", [str, lambda n: f"{n}.50"])
def test_a_word_among_prices_is_refused(price: Callable[[int], str], tmp_path: Path) -> None:
    prices = [price(random.Random(i).randint(3, 9000)) for i in range(300)]
    with pytest.raises(
        ValueError, match=r"line 12: label is 'ask' where others are numbers such as \d+.*: give a number or leave the row out"
    ):
        read(tmp_path / "a.csv", table([*prices[:10], "ask", *prices[10:]]))


@pytest.mark.parametrize("rows", [300, 3000])
def test_spelled_numbers_are_named_however_many_they_are(rows: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"numbers that are not written as such, for instance '\$\d+'"):
        read(tmp_path / "a.csv", table([f"${random.Random(i).randint(1, rows // 2)}" for i in range(rows)]))


def test_whole_stars_are_scores_and_a_line_says_so(tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([1, 2, 3, 4, 5] * 20).replace("label", "stars", 1))
    assert card.task == "regress" and said(card, "5 distinct whole numbers from 1 to 5, read as scores: task=classify")


@pytest.mark.parametrize("between", [",", ";"])
def test_labels_that_look_like_several_are_reported(between: str, tmp_path: Path) -> None:
    card = read(tmp_path / "a.csv", table([f"a{between}b", "a", f"b{between}c", "c"] * 20, "\t"), format="tsv")
    assert len(card.labels) == 4 and said(card, f"label_separator={between!r} reads several")
    assert not any(
        "label_separator" in line for line in read(tmp_path / "b.tsv", table(["Paris, TX", "Rome"] * 30, "\t"), out="b").warnings
    )


def test_a_separator_behind_the_last_cell(tmp_path: Path) -> None:
    head, *lines = table(TWO).splitlines()
    assert rows(read(tmp_path / "a.csv", "\n".join([head, *(f"{line},," for line in lines)]))) == 60
    with pytest.raises(ValueError, match="line 2: 3 fields, but the header has 2"):
        read(tmp_path / "b.csv", "\n".join([head, *(f"{line},more" for line in lines)]), out="b")


def test_fields_of_objects_in_a_row(tmp_path: Path) -> None:
    lines = [json.dumps({"data": {"body": f"{WORDS[i % 9]} film {i}"}, "said": {"by": "a", "label": TWO[i]}}) for i in range(60)]
    with pytest.raises(ValueError, match="cannot tell .* among data.body, said.by, said.label"):
        read(tmp_path / "a.jsonl", "\n".join(lines))
    card = read(tmp_path / "a.jsonl", "\n".join(lines), text="data.body", label="said.label")
    assert rows(card) == 60 and card.labels == ["x", "y"]


@pytest.mark.parametrize("content", ['{"text": ["a", "b"], "label": [0, 1]}', '{"text": {"0": "a"}, "label": {"0": 1}}'])
def test_columns_in_place_of_rows(content: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a row is an object such as .*: one a line, or an array of them"):
        read(tmp_path / "a.json", content)


def test_a_packed_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unpack it first \(.gz alone is read packed\)"):
        read(tmp_path / "a.csv.zip", b"PK\3\4")


def test_curly_quotes_name_their_encoding(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="byte 0x93 is not utf-8; .*encoding=cp1252"):
        read(tmp_path / "a.csv", table([*TWO, "“z”"]).encode("cp1252"))
    assert "“z”" in read(tmp_path / "a.csv", table([*TWO, *["“z”"] * 3]).encode("cp1252"), encoding="cp1252").labels


@pytest.mark.parametrize(("long", "asked", "tokens"), [(0, None, 512), (1, None, 512), (5, None, 2048), (5, 64, 64)])
def test_rows_are_read_further_where_many_are_long(long: int, asked: int | None, tokens: int, tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [f"{' '.join(draw.choices(WORDS, k=3000 if i < long else 8))},{TWO[i]}" for i in range(40)]
    card = read(tmp_path / "a.csv", "\n".join(["text,label", *lines]), max_len=asked)
    assert card.max_len == tokens and sum(split.truncated for split in card.splits.values()) >= long


@pytest.mark.parametrize("labels", [None, ""])
def test_a_test_file_without_labels_is_refused(labels: str | None, tmp_path: Path) -> None:
    """It was named to measure on: splitting other rows off in its place would be a figure of something else."""
    draw = random.Random(1)
    header = "text,sentiment" if labels is None else "text,label"
    (tmp_path / "new.csv").write_text(header + "\n" + "".join(f"{text(draw)},{labels or ''}\n" for _ in range(9)))
    with pytest.raises(ValueError, match=r"new\.csv has no column 'label'; it has: text, sentiment|new\.csv has no labels"):
        read(tmp_path / "a.csv", table(TWO), test_file=str(tmp_path / "new.csv"))
    assert not (tmp_path / "out").exists()


def test_rows_of_one_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every row has the same text: there is nothing to learn"):
        read(tmp_path / "a.csv", "text,label\n" + "The same,x\nthe  same,y\n" * 30)


def test_dates_as_labels(tmp_path: Path) -> None:
    dates = [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(400)]
    with pytest.raises(ValueError, match="column 'label' holds dates, for instance '2024-01-01': name another column"):
        read(tmp_path / "a.csv", table(dates))
    assert len(read(tmp_path / "a.csv", table(dates), task="classify").labels) == 84
    with pytest.raises(ValueError, match="holds dates, for instance"):
        read(tmp_path / "a.csv", table([f"{1 + i % 28}/{1 + i % 12}/24 10:00" for i in range(400)]), "other")


def test_a_comma_in_the_header_of_a_table_with_other_separators(tmp_path: Path) -> None:
    draw = random.Random(0)
    for i, (name, part) in enumerate((("text, cleaned", ", and so"), ("text,cleaned", ""), ("text", ", so"))):
        lines = "".join(f"{i};{text(draw)}{part};{'xy'[i % 2]}\n" for i in range(60))
        card = read(tmp_path / "a.csv", f"id;{name};label\n{lines}", str(i))
        assert card.columns["text"] == (name,) and card.labels == ["x", "y"]
    assert read(tmp_path / "a.csv", table(TWO).replace("text,label", "text,label;z"), "both", label="label;z").labels == ["x", "y"]


def test_a_split_by_hash_that_leaves_one_class(tmp_path: Path) -> None:
    texts = sorted((place(text_key(f"w{i}"), 0.1, 0.1), f"w{i}") for i in range(40))
    kept, apart = ([one for split, one in texts if (split == "train") is wanted] for wanted in (True, False))
    content = "text,label\n" + "".join(f"{one},x\n" for one in kept[:8]) + f"{apart[0]},y\n"
    with pytest.raises(ValueError, match="all 8 rows of train are 'x', so there is nothing to learn"):
        read(tmp_path / "a.csv", content)
    assert not (tmp_path / "out").exists()
    assert read(tmp_path / "a.csv", content, valid=0.0, test=0.0).labels == ["x", "y"]


def test_a_class_that_the_figures_cannot_speak_of_is_named(tmp_path: Path) -> None:
    texts = [f"w{i}" for i in range(300)]
    rare = [one for one in texts if place(text_key(one), 0.1, 0.1) == "train"][:7]
    card = read(tmp_path / "a.csv", "text,label\n" + "".join(f"{one},{'yes' if one in rare else 'no'}\n" for one in texts))
    assert said(card, "1 class has no row in test (yes): its figures say nothing about that")
    assert not any("no row in test" in one for one in read(tmp_path / "b.csv", table(TWO * 9), "two").warnings)


def test_wide_characters_without_a_mark_name_the_option(tmp_path: Path) -> None:
    wide = table(TWO).encode("utf-16-le")
    with pytest.raises(ValueError, match="encoding=utf-16-le"):
        read(tmp_path / "a.csv", wide)
    assert read(tmp_path / "a.csv", wide, encoding="utf-16-le").labels == ["x", "y"]
