"""What a trained model is good for: `eval` and `predict`, on the data of its training and on other data."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import settings, write_scores, write_table
from tokmix.data.prepare.pipeline import prepare
from tokmix.training import evaluate, model_folder, predict
from tokmix.training.settings import Settings
from tokmix.training.train import run


def test_evaluating_the_prepared_split_gives_the_reported_figure(trained, capsys):
    record = json.loads((trained / "run" / "model" / "training.json").read_text())
    found = evaluate.run(trained / "run", trained / "run" / "data")
    assert found["accuracy"] == record["figures"]["accuracy"]
    assert found["confusion"] == record["figures"]["confusion"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"accuracy {found['accuracy']:.4f}"


def test_evaluating_a_table_uses_every_row(trained, tmp_path, capsys):
    found = evaluate.run(trained / "run", write_table(tmp_path / "more.csv", 50, seed=9), as_json=True)
    assert found["rows"] == 50 and sum(found["balance"].values()) == 50
    assert json.loads(capsys.readouterr().out) == found


def test_evaluation_says_what_is_left_out(trained, tmp_path, capsys):
    (tmp_path / "gaps.csv").write_text("text,label\nfine day,good\n,bad\n  ,good\ndull day,bad\n")
    found = evaluate.run(trained / "run", tmp_path / "gaps.csv", as_json=True)
    out, err = capsys.readouterr()
    assert found["rows"] == 2 and json.loads(out) == found
    assert err == "warning: left out: 2 rows with no text\n" and found["warnings"] == ["left out: 2 rows with no text"]


def test_evaluation_refuses_labels_it_does_not_know(trained, tmp_path):
    (tmp_path / "odd.csv").write_text("text,label\nfine day,goood\ndull day,bad\n")
    with pytest.raises(ValueError, match="label 'goood' does not occur in training.*did you mean 'good'"):
        evaluate.run(trained / "run", tmp_path / "odd.csv")


def parted(path: Path, column: str, rows: dict[str, int], seed: int = 0) -> Path:
    """A table with a column that says which split a row belongs to."""
    header, *lines = write_table(path, sum(rows.values()), seed).read_text().splitlines()
    named = [f"{line},{split}" for line, split in zip(lines, [s for s, count in rows.items() for _ in range(count)], strict=True)]
    path.write_text("\n".join([f"{header},{column}", *named]) + "\n")
    return path


def test_evaluation_keeps_to_the_split_column_of_training(tmp_path):
    table = parted(tmp_path / "t.csv", "part", {"train": 60, "valid": 9, "test": 12})
    record = run(table, tmp_path / "run", settings(train__steps=2, prepare__split_column="part"), quiet=True)
    found = evaluate.run(tmp_path / "run", table)
    assert (found["split"], found["rows"]) == ("test", 12) and found["confusion"] == record["figures"]["confusion"]
    assert evaluate.run(tmp_path / "run", table, split="valid")["rows"] == 9
    assert evaluate.run(tmp_path / "run", write_table(tmp_path / "more.csv", 20, seed=1))["rows"] == 20, "data without that column"
    other = parted(tmp_path / "other.csv", "fold", {"valid": 5, "test": 7}, seed=2)
    assert evaluate.run(tmp_path / "run", other, split_column="fold")["rows"] == 7


def test_evaluation_needs_no_train_split(trained, tmp_path):
    (tmp_path / "both").mkdir()
    write_table(tmp_path / "both" / "valid.csv", 30, seed=1)
    write_table(tmp_path / "both" / "test.csv", 20, seed=2)
    for split, rows in ((None, 20), ("valid", 30), ("test", 20)):
        assert evaluate.run(trained / "run", tmp_path / "both", split=split)["rows"] == rows
    alone = evaluate.run(trained / "run", tmp_path / "both" / "valid.csv", split="valid")
    assert (alone["split"], alone["rows"]) == ("valid", 30)
    table = parted(tmp_path / "t.csv", "Split", {"test": 8})
    assert evaluate.run(trained / "run", table)["rows"] == 8
    with pytest.raises(ValueError, match="no train split, only test"):
        run(table, tmp_path / "out", settings(), quiet=True)


def test_evaluation_reads_files_as_training_did(tmp_path):
    (tmp_path / "code").mkdir()
    for i in range(30):
        (tmp_path / "code" / f"{i}.py").write_bytes(f"word{i % 7} = 'caf\u00e9 {i}'\n".encode("latin-1") * 9)
    given = {"model__stack": "hsm", "model__length": 16, "train__steps": 1, "prepare__vocab": 300}
    run(tmp_path / "code", tmp_path / "lm", settings(prepare__pattern="*.py", prepare__encoding="latin-1", **given), quiet=True)
    whole = evaluate.run(tmp_path / "lm", tmp_path / "code")
    assert whole["tokens"] > evaluate.run(tmp_path / "lm", tmp_path / "code", pattern="1*.py")["tokens"]
    (tmp_path / "a.txt").write_text("word1 = 'a'\n")
    assert evaluate.run(tmp_path / "lm", tmp_path / "a.txt")["tokens"], "a file has no pattern"

    lines = write_table(tmp_path / "t.csv", 60).read_text().splitlines()
    (tmp_path / "t.dat").write_text("\n".join(lines[1:]) + "\n")
    prepare(tmp_path / "t.dat", tmp_path / "data", vocab=200, format="csv", header="text,label")
    run(tmp_path / "data", tmp_path / "rows", Settings.of(None, {"model.dim": 16, "train.steps": 1, "train.baseline": False}), quiet=True)
    (tmp_path / "t.jsonl").write_text('{"text": "a fine day", "label": "good"}\n')
    for name, rows in (("t.dat", 60), ("t.csv", 60), ("t.jsonl", 1)):
        assert evaluate.run(tmp_path / "rows", tmp_path / name)["rows"] == rows


@pytest.mark.parametrize("task", ["regress", "mlm"])
def test_evaluation_gives_the_loss_of_training(task, tmp_path):
    table = write_scores(tmp_path / "pairs.tsv", 100)
    table.write_text("\n".join(f"{line}00" if i else line for i, line in enumerate(table.read_text().splitlines())) + "\n")
    given = {"train__mask": 0.5, "train__seed": 3} if task == "mlm" else {}
    record = run(table, tmp_path / "run", settings(train__task=task, train__steps=2, **given), quiet=True)
    found = evaluate.run(tmp_path / "run", tmp_path / "run" / "data")
    for name in ("loss", "tokens" if task == "mlm" else "rmse"):
        assert found[name] == pytest.approx(record["figures"][name], rel=1e-4), name
    path = tmp_path / "run" / "model" / "training.json"
    before = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("deviation", "files", "checksum")}
    path.write_text(json.dumps(before | {"version": 1}))
    assert evaluate.run(tmp_path / "run", tmp_path / "run" / "data")["loss"] > 0, "folders that do not note it can be read"


def test_predictions_do_not_depend_on_the_batch(trained, tmp_path):
    texts = [line.rsplit(",", 1)[0] for line in write_table(tmp_path / "t.csv", 200, seed=3).read_text().splitlines()[1:]]
    predictor = predict.Predictor(model_folder.load(trained / "run"))
    together = list(predictor(texts))
    alone = [next(predictor([text])) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one["text"] == other["text"] and one["label"] == other["label"]
        for label, chance in one["probabilities"].items():
            assert abs(chance - other["probabilities"][label]) < 1e-5
    assert len({answer["label"] for answer in together}) == 2


def test_predictions_equal_those_of_hugging_face(trained):
    from transformers import pipeline

    import tokmix.hf  # noqa: F401 - makes the model class known

    texts = ["the film was lovely and warm", "a dull day in the house"]
    ours = list(predict.Predictor(model_folder.load(trained / "run"))(texts))
    theirs = pipeline("text-classification", model=str(trained / "run" / "model"), device="cpu")(texts)
    for one, other in zip(ours, theirs, strict=True):
        assert one["label"] == other["label"] and abs(one["probabilities"][one["label"]] - other["score"]) < 1e-5


def test_predict_reads_texts_files_and_standard_input(trained, tmp_path, capsys, monkeypatch):
    model, texts = trained / "run", ["lovely film", "awful, cold road"]
    predict.run(model, texts)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == texts
    (tmp_path / "lines.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "table.tsv").write_text("id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    for name in ("lines.txt", "table.tsv"):
        predict.run(model, [str(tmp_path / name)])
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == answers
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(codecs.BOM_UTF8 + "\n".join(texts).encode())))
    predict.run(model, ["-"], format="table")
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and shown[0].startswith(answers[0]["label"]) and shown[0].endswith(f"  {texts[0]}")
    (tmp_path / "T.CSV.GZ").write_bytes(gzip.compress(f'label,text\ngood,{texts[0]}\nbad,"{texts[1]}"\n'.encode()))
    predict.run(model, [str(tmp_path / "T.CSV.GZ")])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == answers


def test_predict_counts_blank_lines_and_answers_for_empty_rows(trained, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("lovely film\n\n \ncold road\n")
    predict.run(trained / "run", [str(tmp_path / "lines.txt")])
    out, err = capsys.readouterr()
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["lovely film", "cold road"]
    assert err == "blank lines left out: 2\n"
    (tmp_path / "rows.csv").write_text("text,label\nlovely film,good\n,bad\n")
    predict.run(trained / "run", [str(tmp_path / "rows.csv")])
    out, err = capsys.readouterr()
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["lovely film", ""] and err == ""


def test_predict_reads_the_format_and_header_of_training(tmp_path, capsys):
    header, *rows = write_table(tmp_path / "named.csv", 60).read_text().splitlines()
    (tmp_path / "rows.data").write_text("\n".join(rows) + "\n")
    run(tmp_path / "rows.data", tmp_path / "run", settings(train__steps=2, prepare__format="csv", prepare__header=header), quiet=True)
    predict.run(tmp_path / "run", [str(tmp_path / "named.csv")])
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == len(rows)
    predict.run(tmp_path / "run", [str(tmp_path / "rows.data")])
    assert capsys.readouterr().out.splitlines() == answers
    (tmp_path / "lines.txt").write_text("a, b\n")
    predict.run(tmp_path / "run", [str(tmp_path / "lines.txt")])
    assert json.loads(capsys.readouterr().out)["text"] == "a, b"


def test_standard_input_has_the_encoding_that_is_named(trained, capsys, monkeypatch):
    for encoding in ("latin-1", "utf-8"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("so\ncaf\u00e9\n".encode(encoding))))
        predict.run(trained / "run", ["-"], encoding=encoding)
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["so", "caf\u00e9"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"so\ncaf\xe9\n")))
    with pytest.raises(ValueError, match="standard input, line 2: byte 0xe9 is not utf-8"):
        predict.run(trained / "run", ["-"])


def test_predict_refuses_what_it_cannot_read(trained):
    with pytest.raises(ValueError, match="no file 'missing.csv'"):
        predict.run(trained / "run", ["missing.csv"])
    with pytest.raises(ValueError, match="no text to predict"):
        predict.run(trained / "run", [])
    with pytest.raises(ValueError, match="unknown format 'xml'"):
        predict.run(trained / "run", ["a"], format="xml")


def test_of_many_classes_the_commonest_mistakes_are_told():
    labels = [f"class {n}" for n in range(30)]
    counts = [[5 if a == b else 0 for b in range(30)] for a in range(30)]
    counts[3][7], counts[8][2] = 4, 12
    found = {"split": "test", "rows": 166, "truncated": 0, "labels": labels, "confusion": counts, "accuracy": 150 / 166}
    told = evaluate.table("classify", found).splitlines()
    assert told[1:4] == ["30 classes; commonest mistakes (--json has the whole table):", "12 of 'class 8' taken for 'class 2'",
                         " 4 of 'class 3' taken for 'class 7'"]  # fmt: skip
    assert len(told) == 5 and told[-1] == f"accuracy {150 / 166:.4f}"
