"""`train` end to end on small data: what it writes, what it learns, what the trained model then does."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import settings, write_scores, write_table, write_text
from tokmix.data.prepare import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.lab import evaluate, generate, modelfolder, predict
from tokmix.lab.checkpoint import Checkpoints
from tokmix.lab.engine import Engine
from tokmix.lab.settings import Settings, recipes
from tokmix.lab.task import Work
from tokmix.lab.train import run
from tokmix.lab.world import World

QUICK = {"train__epochs": 10, "train__lr": 5e-3, "train__rows": 16, "train__token_dropout": 0.0, "model__dropout": 0.1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    write_table(folder / "films.csv", 400)
    run(
        folder / "films.csv",
        folder / "run",
        settings(**QUICK, train__evaluations=6),
        quiet=True,
    )
    return folder


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    text = write_text(folder / "text")
    given = {"model__stack": "hsm*2, attention(heads=2)", "model__length": 32, "train__steps": 30, "prepare__vocab": 300}
    run(text, folder / "run", settings(**given), quiet=True)
    return folder


def test_a_table_becomes_a_model_that_has_learnt(trained):
    record = json.loads((trained / "run" / "model" / "training.json").read_text())
    assert record["task"] == "classify" and record["labels"] == ["bad", "good"] and record["split"] == "test"
    assert record["figures"]["accuracy"] > 0.9
    assert record["cost"]["steps"] == json.loads((trained / "run" / "log.jsonl").read_text().splitlines()[-1])["step"]
    assert len(record["selection"]["history"]) >= 6
    names = {path.name for path in (trained / "run" / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training.json", "README.md"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))], "no pickle in a model folder"
    assert (trained / "run" / "curve.png").stat().st_size > 1000
    assert "accuracy" in (trained / "run" / "model" / "README.md").read_text()


def test_the_best_evaluation_is_kept(trained):
    record = json.loads((trained / "run" / "model" / "training.json").read_text())
    history = record["selection"]["history"]
    best = max(entry["accuracy"] for entry in history)
    first = next(entry["step"] for entry in history if entry["accuracy"] == best)
    assert (record["selection"]["score"], record["selection"]["step"]) == (best, first)


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
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "deviation"}))
    assert evaluate.run(tmp_path / "run", tmp_path / "run" / "data")["loss"] > 0, "folders that do not note it can be read"


def test_predictions_do_not_depend_on_the_batch(trained, tmp_path):
    texts = [line.rsplit(",", 1)[0] for line in write_table(tmp_path / "t.csv", 200, seed=3).read_text().splitlines()[1:]]
    predictor = predict.Predictor(modelfolder.load(trained / "run"))
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
    ours = list(predict.Predictor(modelfolder.load(trained / "run"))(texts))
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


def test_packed_rows_train_like_padded_ones(trained, tmp_path):
    def losses(packed: bool) -> torch.Tensor:
        given = {"train.packed": packed, "train.rows": 8, "train.token_dropout": 0.0, "model.dropout": 0.0, "model.dim": 16}
        engine = Engine(Work(TokenFiles(trained / "run" / "data"), Settings.of(None, given)), World(), Checkpoints(tmp_path))
        for _ in range(4):
            engine.step()
        return torch.tensor(engine.look())

    assert torch.allclose(losses(True), losses(False), atol=1e-4)


def test_scores_of_pairs(tmp_path):
    table = write_scores(tmp_path / "pairs.tsv", 400)
    record = run(
        table,
        tmp_path / "run",
        settings(**QUICK),
        quiet=True,
    )
    assert record["task"] == "regress" and record["figures"]["pearson"] > 0.8
    predictor = predict.Predictor(modelfolder.load(tmp_path / "run"))
    low, high = predictor([("a road", "dull cold grey awful"), ("a road", "fine warm bright lovely")])
    assert low["score"] < high["score"]
    with pytest.raises(ValueError, match="reads 2 texts at a time, not 1"):
        list(predictor(["alone"]))


def test_a_language_model_is_trained_measured_and_continued(language_model, capsys):
    record = json.loads((language_model / "run" / "model" / "training.json").read_text())
    assert record["task"] == "lm" and 0 < record["figures"]["bits_per_byte"] < 8
    found = evaluate.run(language_model / "run", language_model / "run" / "data", split=record["split"])
    assert found["bits_per_byte"] == pytest.approx(record["figures"]["bits_per_byte"], abs=1e-6)
    assert capsys.readouterr().out.splitlines()[-1] == f"bits_per_byte {found['bits_per_byte']:.4f}"
    texts = [generate.run(language_model / "run", "the day was", max_new=12, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert capsys.readouterr().out.startswith("the day was" + texts[0])
    assert generate.run(language_model / "run", "the day was", max_new=0) == "" and capsys.readouterr().out == "the day was\n"
    with pytest.raises(ValueError, match="is not utf-8 at letter 1"):
        generate.run(language_model / "run", "\udcff")


def test_a_prompt_beyond_a_models_length_is_named(tmp_path, capsys):
    given = {"model__stack": "gmlp", "model__length": 8, "prepare__vocab": 300, "train__steps": 1}
    run(write_text(tmp_path / "text", 20), tmp_path / "run", settings(**given), quiet=True)
    with pytest.raises(ValueError, match="takes at most 6 to go on from: shorten it"):
        generate.run(tmp_path / "run", "the day was so " * 9)
    generate.run(tmp_path / "run", "the", max_new=50)
    assert "this model takes 8 tokens: it can give " in capsys.readouterr().err
    generate.run(tmp_path / "run", "the", max_new=1)
    assert not capsys.readouterr().err


def test_masked_tokens_are_learnt_from_any_rows(tmp_path):
    prepare(write_table(tmp_path / "t.csv"), tmp_path / "data", vocab=200)
    record = run(
        tmp_path / "data", tmp_path / "run", Settings.of(None, {"model.dim": 16, "train.task": "mlm", "train.steps": 5}), quiet=True
    )
    assert record["task"] == "mlm" and record["figures"]["loss"] > 0


def test_bag_of_words_beside_the_model(tmp_path, capsys):
    pytest.importorskip("sklearn")
    record = run(write_table(tmp_path / "t.csv"), tmp_path / "run", settings(train__steps=3, train__baseline=True))
    assert record["baseline"]["accuracy"] > 0.9
    shown = capsys.readouterr().out
    assert f"a bag of words on the same rows: accuracy {record['baseline']['accuracy']:.4f}" in shown
    assert shown.splitlines()[-1] == f"accuracy {record['figures']['accuracy']:.4f}"


def test_what_stands_beside_the_model_learns_from_the_same_rows(tmp_path):
    pytest.importorskip("sklearn")
    table, text = write_table(tmp_path / "t.csv", 300), write_text(tmp_path / "text")
    more = {"train__steps": 1, "train__baseline": True}
    features, counted = (
        [
            run(data, tmp_path / f"{name}-{share}", settings(train__fraction=share, **more, **given), quiet=True)["baseline"][name]
            for share in (1.0, 0.2)
        ]
        for data, name, given in (
            (table, "features", {}),
            (text, "train_bytes", {"model__stack": "hsm", "model__length": 32, "prepare__vocab": 300}),
        )
    )
    assert features[1] < 0.6 * features[0] and counted[1] < 0.3 * counted[0]


def test_a_bag_of_words_that_is_cut_short_warns_nobody(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr("tokmix.lab.baseline.ITERATIONS", 1)  # warnings are errors here
    record = run(write_table(tmp_path / "t.csv"), tmp_path / "run", settings(train__steps=3, train__baseline=True))
    assert 0 < record["baseline"]["accuracy"] < 0.9, "it was cut short"


def test_an_absent_scikit_learn_is_said_plainly(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tokmix.lab.baseline.available", lambda: False)
    record = run(write_table(tmp_path / "t.csv"), tmp_path / "run", settings(train__steps=2, train__baseline=True))
    assert record["baseline"] is None and "scikit-learn is not installed" in capsys.readouterr().out


def test_minutes_bound_the_run(tmp_path):
    prepare(write_table(tmp_path / "t.csv"), tmp_path / "data", vocab=200)
    given = {
        "model.dim": 16,
        "model.stack": "hypermixing(hidden=8)",
        "train.epochs": 100_000,
        "train.minutes": 0.02,
        "train.baseline": False,
    }
    record = run(tmp_path / "data", tmp_path / "run", Settings.of(None, given), quiet=True)
    assert record["cost"]["steps"] < 100_000 and record["selection"]["history"][-1]["step"] == record["cost"]["steps"]


def test_an_existing_folder_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="exists already"):
        run(trained / "films.csv", trained / "run", settings(), quiet=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("keep")
    with pytest.raises(ValueError, match="not a run of tokmix train"):
        run(trained / "films.csv", tmp_path / "mine", settings(), resume=True, quiet=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["note.txt"]


def test_a_damaged_model_folder_is_one_line(trained, tmp_path):
    import shutil

    def broken(change) -> str:
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        shutil.copytree(trained / "run" / "model", tmp_path / "m")
        change(tmp_path / "m")
        with pytest.raises(ValueError) as caught:
            modelfolder.load(tmp_path / "m")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def edit(name, **values):
        def change(folder):
            known = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(known | values))

        return change

    def cut(name, keep):
        return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    assert "model.safetensors is damaged" in broken(cut("model.safetensors", 5000))
    assert "config.json is not JSON" in broken(cut("config.json", 20))
    assert "tokenizer.json is missing" in broken(lambda folder: (folder / "tokenizer.json").unlink())
    assert "not a tokenizer.json" in broken(cut("tokenizer.json", 100))
    assert "format version 9" in broken(edit("config.json", format_version=9))
    assert "format version 9" in broken(edit("training.json", version=9))
    assert "does not fit config.json" in broken(edit("config.json", dim=24))


def test_what_does_not_fit_is_one_line(trained, tmp_path):
    table = write_table(tmp_path / "t.csv", 60)
    with pytest.raises(ValueError, match="unknown setting 'train.lrr', did you mean 'train.lr'"):
        settings(train__lrr=1.0)
    with pytest.raises(ValueError, match="mixer 'hypermixin'"):
        run(table, tmp_path / "a", settings(model__stack="hypermixin*2"), quiet=True)
    (tmp_path / "one.csv").write_text("text,label\na b c,x\nd e f,x\n")
    with pytest.raises(ValueError, match="a single class"):
        run(tmp_path / "one.csv", tmp_path / "a", settings(), quiet=True)
    with pytest.raises(ValueError, match="missing"):
        run(tmp_path / "missing.csv", tmp_path / "a", settings(), quiet=True)
    text = write_text(tmp_path / "text", 20)
    with pytest.raises(ValueError, match="mixer 'fnet' has no 'causal' mode"):
        run(text, tmp_path / "b", settings(model__stack="fnet*2", prepare__vocab=300), quiet=True)
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    prepare(table, tmp_path / "data", vocab=200)
    with pytest.raises(ValueError, match="comes too late"):
        run(tmp_path / "data", tmp_path / "c", settings(), quiet=True)
    with pytest.raises(ValueError, match="prepared for 'classify'"):
        run(tmp_path / "data", tmp_path / "d", Settings.of(None, {"train.task": "lm"}), quiet=True)
    with pytest.raises(ValueError, match="needs one for lm"):
        generate.run(trained / "run", "a")
    with pytest.raises(ValueError, match="another tokenizer"):
        evaluate.run(trained / "run", tmp_path / "data")


def test_settings_need_neither_torch_nor_numpy():
    code = "import sys, tokmix.lab.settings; assert not {'torch', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", recipes())
def test_recipes_are_settings(name, tmp_path):
    from tokmix.budget import parameter_count
    from tokmix.data.tokens import TokenFiles
    from tokmix.lab.task import Work

    asked = Settings.of(name)
    task = asked.train.task or asked.prepare.get("task") or "classify"
    source = write_text(tmp_path / "t") if task == "lm" else write_table(tmp_path / "t.csv")
    prepare(source, tmp_path / "data", task=task, vocab=300)
    assert parameter_count(Work(TokenFiles(tmp_path / "data"), asked).config) > 0
    with pytest.raises(ValueError, match=f"did you mean '{name}'"):
        Settings.of(name + "x")


def test_options_go_before_the_config(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"model": {"dim": 32}, "train": {"lr": 0.1, "seed": 4}}))
    made = Settings.of(tmp_path / "mine.json", {"train.lr": 0.2})
    assert (made.model.dim, made.train.lr, made.train.seed) == (32, 0.2, 4)
    (tmp_path / "odd.json").write_text(json.dumps({"modle": {}}))
    with pytest.raises(ValueError, match="did you mean 'model'"):
        Settings.of(tmp_path / "odd.json")
    for text in ("1e-3", "2.5E+3", "5e1", "0.5"):
        (tmp_path / "mine.yaml").write_text(f"model:\ntrain:\n  lr: {text}\n  device: cuda:1\n")
        assert Settings.of(tmp_path / "mine.yaml").train.lr == float(text)
    for config, words in (({"model": 3}, "part 'model' of a config should hold settings by name, not 3"),
                          ({"train": {"lr": "fast"}}, "^train.lr='fast' should be of type")):  # fmt: skip
        (tmp_path / "odd.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=words):
            Settings.of(tmp_path / "odd.json")
