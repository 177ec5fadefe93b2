"""`prepare` as a whole: real data sets where they are at hand, memory that does not grow with the file, a summary that is true."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tokmix.data.prepare.pipeline import prepare  # noqa: E402
from tokmix.data.split import holdout  # noqa: E402
from tokmix.data.tokens import TokenFiles  # noqa: E402
from tokmix.training.eval_data import _settings as settings_for  # noqa: E402
from tokmix.training.model_record import Columns  # noqa: E402

needs_data = pytest.mark.skipif("TOKMIX_DATA" not in os.environ, reason="TOKMIX_DATA does not name the folder of real data sets")


def real(name):
    return Path(os.environ["TOKMIX_DATA"]) / name


def counts(card):
    return {name: split.rows for name, split in card.splits.items()}


@needs_data
def test_sst2(tmp_path):
    card = prepare(real("sst2"), tmp_path / "out")
    assert (card.task, card.labels, card.columns["text"]) == ("classify", ["0", "1"], ("text",))
    assert counts(card) == {"train": 67349, "valid": 872, "test": 1821}
    assert card.splits["valid"].labels == {"0": 428, "1": 444}
    assert card.overlap["valid in train"] == 0 and card.overlap["test in train"] > 0  # the published test set has a few
    files = TokenFiles(tmp_path / "out")
    tokenizer, valid = files.tokenizer(), files["valid"]
    assert tokenizer.decode(valid.row(1).tolist()) == "unflinchingly bleak and desperate"
    assert valid.targets[:2].tolist() == [1, 0]
    _, held = holdout(files["train"].keys, 0.05)
    assert abs(len(held) / 67349 - 0.05) < 0.01


@needs_data
def test_snli_is_a_pair(tmp_path):
    (tmp_path / "snli").mkdir()
    for given, name in (("test", "train"), ("valid", "valid")):  # its train would take most of this file's time
        (tmp_path / "snli" / f"{name}.tsv.gz").symlink_to(real("snli") / f"{given}.tsv.gz")
    card = prepare(tmp_path / "snli", tmp_path / "out", tokenizer=str(real("tokenizers") / "bert-base-uncased.json"))
    assert counts(card) == {"train": 9824, "valid": 9831}
    assert card.labels == ["contradiction", "entailment", "neutral"]
    assert (card.columns["text"], card.columns["target"]) == (("premise", "hypothesis"), "label")
    assert card.tokenizer["vocab"] == 30522 and card.tokenizer["specials"] == 3 and card.dtype == "uint16"
    files = TokenFiles(tmp_path / "out")
    row = files["valid"].row(1).tolist()
    assert row.count(102) == 2 and row[0] == 101 and row[-1] == 102
    text = files.tokenizer().decode(row, skip_special_tokens=False)
    assert text == "[CLS] two women are embracing while holding to go packages. [SEP] two woman are holding packages. [SEP]"


@needs_data
def test_stsb_is_a_regression(tmp_path):
    card = prepare(real("stsb"), tmp_path / "out")
    assert (card.task, card.labels, counts(card)) == ("regress", [], {"train": 5749, "valid": 1500})
    assert card.splits["train"].scores["min"] == 0 and card.splits["train"].scores["max"] == 5
    assert TokenFiles(tmp_path / "out")["train"].targets[:3].tolist() == pytest.approx([5.0, 3.8, 3.8])


@needs_data
def test_trec_and_a_cut(tmp_path):
    card = prepare(real("trec"), tmp_path / "out", max_len=12)
    assert (counts(card), card.labels) == ({"train": 5452, "test": 500}, ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"])
    files = TokenFiles(tmp_path / "out")
    lengths = files["train"].lengths(np.arange(5452))
    assert lengths.max() == 12 and 0 < card.splits["train"].truncated <= (lengths == 12).sum()
    assert any("were cut to max_len=12" in warning for warning in card.warnings)
    with pytest.raises(ValueError, match=r"tsv\.gz, line \d+: longer than max_len=12 tokens, and long=refuse"):
        prepare(real("trec"), tmp_path / "refused", max_len=12, long="refuse")
    assert not (tmp_path / "refused").exists()


@needs_data
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_tinyshakespeare_is_a_running_text(tmp_path, tokenizer):
    card = prepare(real("tinyshakespeare"), tmp_path / "out", tokenizer=tokenizer, vocab=1000)
    assert (card.task, card.stream, set(card.splits)) == ("lm", True, {"train", "valid", "test"})
    text = gzip.decompress((real("tinyshakespeare") / "input.txt.gz").read_bytes()).decode()
    assert sum(split.bytes for split in card.splits.values()) == len(text.encode())
    for name in ("valid", "test"):
        assert 0.05 < card.splits[name].bytes / len(text) < 0.15
    files = TokenFiles(tmp_path / "out")
    decoder = files.tokenizer()
    for name in files.splits:
        row = files[name].row(1).tolist()
        assert row[-1] == card.tokenizer["roles"]["eot"] and decoder.decode(row) in text


@needs_data
def test_tinystories_keeps_its_documents(tmp_path):
    card = prepare(real("tinystories") / "valid.txt.gz", tmp_path / "out", into="test", tokenizer=str(real("tokenizers") / "gpt2.json"))
    assert counts(card) == {"test": 495}
    assert card.tokenizer["roles"]["eot"] == 50256


# Without real data.

GENERATE = """
import sys
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write("text,label\\n")
    for i in range(int(sys.argv[2])):
        file.write(f'"row {i}, ' + f"some words of row {i} in a quoted field " * 50 + f'",{"ab"[i % 2]}\\n')
"""
MEASURE = """
import resource, sys
from tokmix.data.prepare.pipeline import prepare
from tokmix.training.model_record import Columns
prepare(sys.argv[1], sys.argv[2], tokenizer="bytes", max_len=4096, **eval(sys.argv[3]))
assert "torch" not in sys.modules
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak(source, out, settings):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(source), str(out), repr(settings)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.parametrize("task", ["classify", "lm"])
def test_memory_does_not_grow_with_the_file(tmp_path, task):
    pytest.importorskip("resource")
    peaks = []
    for rows in (2_000, 11_000):
        source = tmp_path / f"{rows}.{'csv' if task == 'classify' else 'txt'}"
        subprocess.run([sys.executable, "-c", GENERATE, str(source), str(rows)], check=True)
        peaks.append(peak(source, tmp_path / f"out{rows}", {}))
    assert source.stat().st_size > 22_000_000
    # 19 MB more text, and no more than what an allocator varies by.
    assert peaks[1] - peaks[0] < 15, peaks


def test_one_line_without_end_is_read_in_pieces(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("word " * 400_000)
    card = prepare(source, tmp_path / "out", tokenizer="bytes")
    assert sum(split.bytes for split in card.splits.values()) == 2_000_000
    assert len(card.splits) == 3 or any("no " in warning for warning in card.warnings)


def test_the_summary_says_what_was_made(tmp_path):
    rows = [f"{'word ' * (i % 40)}number {i},{'good' if i % 4 else 'bad'}" for i in range(300)] + [" ,good"]
    (tmp_path / "a.csv").write_text("review,verdict\n" + "\n".join(rows) + "\n")
    card = prepare(tmp_path / "a.csv", tmp_path / "out", max_len=30, vocab=300, progress=True)
    summary = card.summary()
    train = card.splits["train"]
    assert summary.startswith("task classify: text from review, target from verdict; split by a hash of the text\n")
    assert f"{train.rows:,} rows" in summary and f"{train.tokens:,} tokens" in summary
    assert f"2 classes: bad {train.labels['bad']}, good {train.labels['good']}" in summary
    assert f"{train.truncated:,} rows of train" in summary
    assert "left out: 1 rows with no text" in summary and card.left_out == {"no text": 1}
    assert TokenFiles(tmp_path / "out").card == card or TokenFiles(tmp_path / "out").card.summary() == summary


def test_everything_cut_is_100_percent(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"row number {i},{i % 2}\n" for i in range(40)))
    card = prepare(tmp_path / "a.csv", tmp_path / "out", max_len=4, tokenizer="bytes")
    assert any("rows of train (100 %) were cut" in warning for warning in card.warnings)


def test_a_split_of_white_space_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.txt").write_text(" \n" * 100)
    (tmp_path / "d" / "test.txt").write_text("some words\n" * 100)
    with pytest.raises(ValueError, match="train holds no text, only white space"):
        prepare(tmp_path / "d", tmp_path / "out")


def test_plain_text_is_read_without_the_columns_of_the_table_a_model_was_trained_on(tmp_path):
    about = SimpleNamespace(columns=Columns(("body",)), stream=True, reading={}, sources=())
    trained = SimpleNamespace(about=about, task="lm", labels=[], folder=tmp_path)
    (tmp_path / "a.txt").write_text("some words\n")
    (tmp_path / "a.csv").write_text("body\nsome words\n")
    assert "text" not in settings_for(trained, tmp_path / "a.txt", {})
    assert settings_for(trained, tmp_path / "a.txt", {"text": "said"})["text"] == "said"  # to be refused
    assert settings_for(trained, tmp_path / "a.csv", {})["text"] == "body"


def test_masked_language_modelling_needs_no_labels(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"row number {i},x\n" for i in range(100)))
    card = prepare(tmp_path / "a.csv", tmp_path / "out", task="mlm", vocab=100)
    assert (card.task, card.stream, card.labels) == ("mlm", False, [])
    split = TokenFiles(tmp_path / "out")["train"]
    assert split.targets is None and split.row(0)[0] == card.tokenizer["roles"]["cls"]


def test_progress_is_drawn_where_asked(tmp_path, capfd):
    pytest.importorskip("rich")
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"row number {i},{i % 2}\n" for i in range(100)))
    prepare(tmp_path / "a.csv", tmp_path / "one", vocab=100, progress=True)
    assert "writing ids" in capfd.readouterr().err
    prepare(tmp_path / "a.csv", tmp_path / "two", vocab=100, progress=False)
    captured = capfd.readouterr()
    assert captured.err == "" and captured.out == ""


def test_tokens_that_are_mostly_unknown_are_said(tmp_path):
    table = tmp_path / "thai.csv"  # written without spaces: a sentence is one word, and too long for wordpiece
    table.write_text("text,label\n" + "".join(f"{'ดีมาก' * 30}{i},{'ab'[i % 2]}\n" for i in range(40)), encoding="utf-8")
    assert any("33 % of train's tokens are unknown" in warning for warning in prepare(table, tmp_path / "one").warnings)
    assert not any("unknown" in warning for warning in prepare(table, tmp_path / "two", tokenizer="bpe").warnings)


def test_labels_without_rows_in_train_are_not_a_page_of_warnings(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"t{i},c{i}\n" for i in range(90)))
    warnings = prepare(tmp_path / "a.csv", tmp_path / "out", task="classify").warnings
    assert sum("no row in train" in warning for warning in warnings) == 6 and "more labels" in warnings[-1]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "bytes"])
def test_a_language_model_on_a_tokenizer_that_forgets_is_warned_of(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A few Words\nof some book.\n" * 200)
    card = prepare(tmp_path / "text.txt", tmp_path / "out", tokenizer=kind, vocab=300)
    assert any("bits per byte" in line for line in card.warnings) == (kind == "wordpiece")


def test_a_folder_inside_of_the_data_is_refused(tmp_path):
    """It would be data the next time."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the fine day was long\n<|endoftext|>\n" * 80)
    for out in (tmp_path / "text" / "out", tmp_path / "text" / "deep" / "out"):
        with pytest.raises(ValueError, match="would be read as data the next time"):
            prepare(tmp_path / "text", out)
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["a.txt"]
    assert prepare(tmp_path / "text", tmp_path / "text-out", vocab=300).stream
