"""Reading tables and text: every format gives the same rows, and everything bad gives one line that says where."""

from __future__ import annotations

import gzip
import json
import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before `datasets` is imported: a hub name would be retried for long

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tokmix.data.prepare.columns import choose_columns
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.prepare.plan import Plan
from tokmix.data.prepare.rows import LeftOut
from tokmix.data.prepare.settings import PrepareSettings
from tokmix.data.read.files import open_source
from tokmix.data.read.lines import chunks, lines

ROWS = [(f'text {i}, with a "quote', "good" if i % 3 else "bad") for i in range(30)]
TSV = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def csv_of(rows):
    return "text,label\r\n" + "".join('"{}",{}\r\n'.format(text.replace('"', '""'), label) for text, label in rows)


def read(source, **settings):
    plan = Plan(open_source(source), PrepareSettings.of(**settings))
    plan.look(lambda n: None)
    return plan, [(*example.texts, example.target) for example in plan.examples(LeftOut())]


def make(path, kind):
    if kind == "tsv":
        return write(path / "a.tsv", TSV)
    if kind == "gz":
        return write(path / "a.tsv.gz", gzip.compress(TSV.encode()))
    if kind == "gz by another name":
        return write(path / "a.tsv", gzip.compress(TSV.encode()))
    if kind == "bom":
        return write(path / "a.tsv", b"\xef\xbb\xbf" + TSV.encode())
    if kind == "csv":
        return write(path / "a.csv", csv_of(ROWS))
    if kind == "semicolons":
        return write(path / "a.csv", "text;label\n" + "".join('"{}";{}\n'.format(text.replace('"', '""'), label) for text, label in ROWS))
    if kind == "jsonl":
        return write(path / "a.jsonl", "".join(json.dumps({"label": label, "id": 7, "text": text}) + "\n" for text, label in ROWS))
    if kind == "folder":
        head, *body = TSV.splitlines(keepends=True)
        write(path / "d" / "README.md", "about the data")
        write(path / "d" / ".hidden.tsv", "x")
        write(path / "d" / "a.tsv", head + "".join(body[:10]))
        write(path / "d" / "deeper" / "b.tsv", head + "".join(body[10:]))
        return path / "d"
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), path / "a.parquet", row_group_size=7)
        return path / "a.parquet"
    assert kind == "saved data set"
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["good", "bad"])})
    table = datasets.Dataset.from_dict({"text": [t for t, _ in ROWS], "label": [int(y == "bad") for _, y in ROWS]}, features=features)
    table.save_to_disk(str(path / "set"))
    return path / "set"


KINDS = ["tsv", "gz", "gz by another name", "bom", "csv", "semicolons", "jsonl", "folder", "parquet", "saved data set"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(tmp_path, kind):
    plan, rows = read(make(tmp_path, kind))
    assert rows == ROWS
    assert plan.task == "classify"
    assert plan.labels == (["good", "bad"] if kind == "saved data set" else ["bad", "good"])  # a data set's own order is kept


def test_a_quoted_field_may_span_lines_and_the_row_keeps_its_first_line(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"two\nlines",x\nplain,y\n')
    assert list(open_source(path)[0].rows(["text"])) == [(2, ["two\nlines"]), (4, ["plain"])]


def test_class_names_and_missing_labels_of_a_parquet_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"sentence": ["a", "b", "c", "d"], "label": [1, 0, -1, 1]}, features=features)
    table.to_parquet(str(tmp_path / "a.parquet"))
    plan, rows = read(tmp_path / "a.parquet")
    assert rows == [("a", "yes"), ("b", "no"), ("d", "yes")]
    assert plan.left_out.counts == {"no label": 1}


def test_parquet_in_gzip_is_one_line_that_says_what_to_do(tmp_path):
    path = make(tmp_path, "parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match="a.parquet.gz is gzip, and parquet is read from its end: unpack it"):
        prepare(tmp_path / "a.parquet.gz", tmp_path / "out")


def test_a_word_among_scores_is_no_reason_to_make_each_score_a_class(tmp_path):
    rows = "".join(f"word {i},{'NA' if i == 7 else i / 4}\n" for i in range(40))
    path = write(tmp_path / "a.csv", "text,score\n" + rows)
    with pytest.raises(ValueError, match="a.csv, line 9: score is 'NA' where others are numbers such as 0.25: give a number"):
        prepare(path, tmp_path / "out")
    assert prepare(path, tmp_path / "out", task="classify").labels.count("NA") == 1
    versions = write(tmp_path / "v.csv", "text,label\n" + "".join(f"word {i},{['1.0', '1.5', 'beta'][i % 3]}\n" for i in range(40)))
    assert prepare(versions, tmp_path / "v").task == "classify"


@pytest.mark.parametrize(("task", "rows"), [("regress", "text,score\na,0.5\nb,1.25\nc,2\n"), ("lm", "text\na\nb\nc\n")])
def test_classes_of_a_task_without_them_are_refused(tmp_path, task, rows):
    with pytest.raises(ValueError, match=f"labels=x,y names classes, and this is {task}: leave it out"):
        prepare(write(tmp_path / "a.csv", rows), tmp_path / "out", labels=("x", "y"))
    assert not (tmp_path / "out").exists()


def test_a_class_beyond_the_names_of_a_data_set_is_one_line(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    noted = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, 2]}).replace_schema_metadata({"huggingface": json.dumps(noted)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a.parquet, row 3: class 2 has no name; the names of 0 to 1 are no, yes"):
        prepare(tmp_path / "a.parquet", tmp_path / "out")


def test_a_hub_data_set_keeps_its_splits(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": ["x", "y"]})
    loaded = datasets.DatasetDict({"train": table, "validation_matched": table, "validation_mismatched": table})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: loaded if (name, subset) == ("org/name", "part") else 1 / 0)
    parts = open_source("hub:org/name", subset="part")
    assert [part.split for part in parts] == ["train", "valid", "valid"]
    assert list(parts[0].rows(["hypothesis", "label"])) == [(1, ["c", "x"]), (2, ["d", "y"])]
    with pytest.raises(ValueError, match="hub gave no data set 'org/other'"):
        open_source("hub:org/other")


def test_half_a_surrogate_pair_becomes_text(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a \\ud83d b", "label": 1}\n{"text": "\\ud83d\\ude00", "label": 2}\n')
    assert [values[0] for _, values in open_source(path)[0].rows(["text"])] == ["a ? b", "\U0001f600"]


@pytest.mark.parametrize(
    ("columns", "asked", "text", "target"),
    [
        (["text", "label"], {}, ("text",), "label"),
        (["idx", "Sentence", "Label"], {}, ("Sentence",), "Label"),
        (["premise", "hypothesis", "label"], {}, ("premise", "hypothesis"), "label"),
        (["sentence1", "sentence2", "score"], {}, ("sentence1", "sentence2"), "score"),
        (["question", "sentence", "label"], {}, ("question", "sentence"), "label"),
        (["question", "label"], {}, ("question",), "label"),
        (["text"], {}, ("text",), None),
        (["words", "kind"], {"text": "words"}, ("words",), "kind"),
        (["words", "label"], {}, ("words",), "label"),
        (["", "text", "language"], {}, ("text",), "language"),
        (["title", "text", "label"], {"text": "title,text"}, ("title", "text"), "label"),
        (["title", "text", "stars"], {"text": "title"}, ("title",), "stars"),
        (["text", "label"], {"task": "lm"}, ("text",), None),
        (["text", "label", "kind"], {"label": "kind"}, ("text",), "kind"),
        (["text", "label", "Label"], {"label": "Label"}, ("text",), "Label"),
        (["label", "Label"], {"text": "Label"}, ("Label",), "label"),
        (["Text", "text", "label"], {"text": "text"}, ("text",), "label"),
    ],
)
def test_columns_are_guessed(columns, asked, text, target):
    chosen = choose_columns("file", columns, **asked)
    assert (chosen.text, chosen.target) == (text, target)


def test_task_is_told_by_the_target(tmp_path):
    def task(column, values):
        path = write(tmp_path / "t.csv", f"text,{column}\n" + "".join(f"row {i},{value}\n" for i, value in enumerate(values)))
        return read(path)[0].task

    assert task("label", [0, 1, 0, 1]) == "classify"
    assert task("label", [0.5, 1, 2.25]) == "regress"
    assert task("score", [1, 2, 3]) == "regress"
    assert task("label", ["1.0", "0.0"]) == "classify"
    assert task("score", ["low", "high"]) == "classify"
    assert task("label", range(1500)) == "regress"
    plan, _ = read(write(tmp_path / "n.csv", "text,label\na,10\nb,9\nc,2\n"))
    assert plan.labels == ["2", "9", "10"]  # by number, not by spelling


BAD = {
    "empty": ("a.csv", b"", {}, r"a\.csv is empty"),
    "empty gz": ("a.csv.gz", gzip.compress(b""), {}, "is empty"),
    "header alone": ("a.tsv", b"text\tlabel\n", {}, "holds no text"),
    "no header": ("a.tsv", b"it is a good film\t1\nit is not\t0\n", {}, "no header line.*header=text,label"),
    "no header, column named": ("a.tsv", b"a good film\t1\nbad\t0\n", {"text": "text"}, "no header line"),
    "unclear columns": ("a.csv", b"foo,bar,baz\n1,2,3\n", {}, "column is text among foo, bar, baz; say text=COLUMN.* and label="),
    "unclear label": ("a.csv", b"text,foo,bar\n1,2,3\n", {}, "cannot tell which column is the label.*label=COLUMN"),
    "unknown column": ("a.csv", b"text,label\na,b\n", {"label": "lable"}, "no column 'lable'; it has: text, label, did you mean 'label'"),
    "two columns of a name": ("a.csv", b"text,text,label\na,b,x\nc,d,y\n", {}, "a.csv has 2 columns 'text'"),
    "label for a text": ("a.csv", b"text,label\na,x\nb,y\n", {"text": "label", "label": "label"}, "column 'label' is named twice"),
    "carriage returns": ("a.csv", b"text,label\ra,x\rb,y\r", {}, "line 1: not a csv row .a carriage return alone"),
    "three texts": ("a.csv", b"a,b,c,label\n1,2,3,4\n", {"text": "a,b,c"}, "names 3 columns"),
    "single class": ("a.csv", b"text,label\na,x\nb,x\n", {}, "every label is 'x': a single class"),
    "constant score": ("a.csv", b"text,score\na,2\nb,2.0\n", {}, "every score is 2"),
    "ragged tsv": ("a.tsv", b"text\tlabel\na\tx\nb\n", {}, "a.tsv, line 3: 1 fields, but the header has 2"),
    "ragged csv": ("a.csv", b'text,label\n"a\nb",x\nb,y,z\n', {}, "a.csv, line 4: 3 fields"),
    "unclosed quote": ("a.csv", b'text,label\na,x\n"b,y\nc,x\n', {}, "a.csv, line 3: not a csv row"),
    "binary": ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\r", {}, "is a binary file"),
    "binary text": ("a.txt", bytes(range(256)), {}, "is a binary file"),
    "half of utf-16": ("a.csv", "text,label\na,x\n".encode("utf-16")[:-1], {}, "not utf-16.*name its encoding"),
    "latin-1": ("a.tsv", "text\tlabel\na\tx\ncaf\u00e9\ty\n".encode("latin-1"), {}, "line 3: byte 0xe9 is not utf-8.*encoding=latin-1"),
    "latin-1 text": ("a.txt", "one\ntwo\ncaf\u00e9 three\n".encode("latin-1"), {}, "line 3: byte 0xe9"),
    "unknown encoding": ("a.csv", b"text,label\na,x\n", {"encoding": "utf-99"}, "unknown encoding 'utf-99'"),
    "unknown encoding of text": ("a.txt", b"words", {"encoding": "utf-99"}, "unknown encoding 'utf-99'"),
    "unknown encoding of json": ("a.jsonl", b'{"text": "a", "label": 1}\n', {"encoding": "utf-99"}, "unknown encoding 'utf-99'"),
    "nan score": ("a.csv", b"text,score\na,1.5\nb,-inf\n", {}, "line 3: score is -inf"),
    "infinite score": ("a.csv", b"text,score\na,1.5\nb,-inf\n", {}, "line 3: score is -inf"),
    "score beyond float32": ("a.csv", b"text,score\na,1.5\nb,1e300\n", {}, "scores up to 1e\\+300"),
    "missing score": ("a.csv", b"text,score\na,1.5\nb,\n", {}, "every score is 1.5"),
    "word for a score": ("a.csv", b"text,score\na,1\nb,high\n", {"task": "regress"}, "line 3: score 'high' is not a number"),
    "nan label": ("a.csv", b"text,label\na,1\nb,inf\nc,0\n", {}, "line 3: label is inf"),
    "missing label": ("a.csv", b"text,label\na,\nb,\n", {}, r"holds no text \(2 rows with no label\)"),
    "not json": ("a.jsonl", b'{"text": "a", "label": 1}\n{oops\n', {}, "line 2: not JSON"),
    "deep json": ("a.jsonl", b'{"text": "a", "label": 1}\n{"x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n", {}, "a.jsonl, line 2: lists"),
    "deep array": ("a.json", b'[{"text": "a"}, {"x": ' + b"[" * 10**5 + b"]" * 10**5 + b"}]", {}, "a.json, object 2: lists or objects"),
    "long number": ("a.jsonl", b'{"text": "a", "label": 1}\n{"x": ' + b"9" * 5000 + b"}\n", {}, "a.jsonl, line 2: a whole number"),
    "long number in an array": ("a.json", b'[{"text": "a"}, {"x": ' + b"9" * 5000 + b"}]", {}, "a.json, object 2: a whole number"),
    "json number": ("a.jsonl", b"7\n", {}, "line 1: int where an object"),
    "json without the label": ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', {}, "line 2: has no 'label'"),
    "first object without the label": ("a.jsonl", b'{"text": "a"}\n{"text": "b", "label": 1}\n', {}, "line 1: has no 'label'.*task=lm"),
    "a number for a text": ("a.jsonl", b'{"text": 5, "label": 1}\n', {}, "line 1: column 'text' holds int"),
    "not parquet": ("a.parquet", b"PAR1 and so on", {}, "not a parquet file"),
    "cut gz": ("a.tsv.gz", gzip.compress(os.urandom(5000).hex().encode())[:-3000], {}, "damaged gzip"),
    "unknown ending": ("a.doc", b"x", {}, "cannot tell the format"),
    "unknown split": ("a.csv", b"text,label,split\na,x,train\nb,y,later\n", {}, "line 3: column 'split' is 'later'"),
    "text for a classifier": ("a.txt", b"words", {"task": "classify"}, "needs a table"),
    "unknown task": ("a.txt", b"words", {"task": "clasify"}, "did you mean 'classify'"),
    "unknown setting": ("a.txt", b"words", {"lable": "x"}, "unknown setting 'lable'.*did you mean 'label'"),
    "unknown tokenizer": ("a.csv", b"text,label\na,x\nb,y\n", {"tokenizer": "wordpeice"}, "did you mean 'wordpiece'"),
    "shares": ("a.csv", b"text,label\na,x\nb,y\n", {"valid": 0.6, "test": 0.6}, "leave nothing to train on"),
    "unseen label": (
        "a.csv",
        b"text,label\na,x\nb,y\n",
        {"labels": ["x", "z"]},
        "line 3: label 'y' does not occur in training; known: x, z",
    ),
    "a label twice": ("a.csv", b"text,label\na,x\nb,y\n", {"labels": ["x", "y", "y"]}, "labels=x,y,y names 'y' twice"),
    "labels that differ in case": ("a.csv", b"text,label,Label\na,x,u\nb,y,v\n", {}, "'label' and 'Label': say which with label="),
    "texts that differ in case": ("a.csv", b"TEXT,text,label\na,b,x\nc,d,y\n", {}, "'TEXT' and 'text': say which with text="),
    "white space": ("a.txt", b" \n\t\n" * 100, {}, "a.txt holds no text"),
    "subset of a file": ("a.csv", b"text,label\na,x\nb,y\n", {"subset": "en"}, "subset='en' names a configuration.*a.csv is a file"),
    "pattern of a file": ("a.csv", b"text,label\na,x\nb,y\n", {"pattern": "*.py"}, r"pattern='\*.py' says which files of a folder"),
    "header of json": ("a.jsonl", b'{"text": "a", "label": 1}\n', {"header": "text,label"}, "header='text,label' names the columns of csv"),
    "text of plain text": ("a.txt", b"words", {"text": "body"}, "text='body' names a column, and a.txt is plain text"),
    "label of plain text": ("a.txt", b"words", {"label": "kind"}, "label='kind' names a column, and a.txt is plain text"),
    "group of plain text": ("a.txt", b"words", {"group": "file"}, "group='file' names a column, and a.txt is plain text"),
    "two texts for lm": ("a.csv", b"premise,hypothesis\na,b\n", {"task": "lm"}, "one text column"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, case):
    name, content, settings, message = BAD[case]
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message) as caught:
        prepare(path, tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_missing_files_and_folders(tmp_path):
    write(tmp_path / "reviews.csv", "text,label\na,x\n")
    with pytest.raises(ValueError, match=r"no file or folder .*did you mean 'reviews.csv'"):
        prepare(tmp_path / "review.csv", tmp_path / "out")
    write(tmp_path / "d" / "README.md", "nothing here")
    with pytest.raises(ValueError, match="holds no file that ends in"):
        prepare(tmp_path / "d", tmp_path / "out")
    with pytest.raises(ValueError, match="holds both tables and plain text"):
        write(tmp_path / "m" / "a.csv", "text,label\n"), write(tmp_path / "m" / "a.txt", "x")
        prepare(tmp_path / "m", tmp_path / "out")


def test_a_hub_name_that_cannot_be_reached_is_one_line(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(ValueError, match="the Hugging Face hub gave no data set 'nobody/nothing'") as caught:
        prepare("hub:nobody/nothing", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_mistyped_folder_never_asks_the_hub(tmp_path, monkeypatch):
    from tokmix.data.read import hub

    monkeypatch.setattr(hub, "fetched", lambda *given: 1 / 0)
    for name in ("nobody/nothing", "reviwes"):
        with pytest.raises(ValueError, match=f"no file or folder '{name}'.*; a data set of the Hugging Face hub is hub:{name}"):
            prepare(name, tmp_path / "out")


def test_a_hub_that_does_not_answer_is_given_up_at_once(monkeypatch):
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants

    from tokmix.data.read import hub

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    seen = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, subset: seen.append(constants.HF_HUB_OFFLINE) or 1 / 0)
    with pytest.raises(ValueError, match="gave no data set"):
        hub.fetched("org/name", None)
    assert seen == [True] and constants.HF_HUB_OFFLINE is False


def test_lines_and_chunks_agree_on_text_with_long_characters(tmp_path):
    text = "é😀\n" * 400_000  # a chunk ends within a character somewhere
    path = write(tmp_path / "a.txt", text)
    assert "".join(chunks(path)) == text
    assert "".join(line for _, line in lines(path)) == text


def test_other_encodings_can_be_named(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tlabel\ncaf\u00e9\tx\nth\u00e9\ty\n".encode("latin-1"))
    parts = open_source(path, encoding="latin-1")
    assert [values for _, values in parts[0].rows(["text"])] == [["café"], ["thé"]]


def test_columns_of_a_file_without_header_can_be_named(tmp_path):
    path = write(tmp_path / "a.csv", "x,one text\ny,other text\n")
    parts = open_source(path, header=["label", "text"])
    assert list(parts[0].rows(["text", "label"])) == [(1, ["one text", "x"]), (2, ["other text", "y"])]


def test_a_pattern_reads_other_files_as_plain_text(tmp_path):
    write(tmp_path / "d" / "a.py", "print(1)\n"), write(tmp_path / "d" / "b.csv", "text,label\n")
    parts = open_source(tmp_path / "d", pattern="*.py")
    assert [part.name for part in parts] == ["a.py"]
    assert "".join(parts[0].chunks()) == "print(1)\n"


def test_a_header_is_of_use_where_one_file_of_a_folder_needs_it(tmp_path):
    write(tmp_path / "d" / "a.csv", "".join(f"row {i},{i % 2}\n" for i in range(40)))
    write(tmp_path / "d" / "b.jsonl", '{"text": "one more", "label": "1"}\n')
    card = prepare(tmp_path / "d", tmp_path / "out", header="text,label", tokenizer="bytes")
    assert sum(split.rows for split in card.splits.values()) == 41


def test_an_empty_name_is_not_the_folder_one_stands_in() -> None:
    with pytest.raises(ValueError, match="no file or folder was named"):
        open_source("")
