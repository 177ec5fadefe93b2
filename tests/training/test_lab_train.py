"""`train` end to end on small data: what it writes, what it learns."""

from __future__ import annotations

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

from tests.lab import QUICK, settings, write_scores, write_table, write_text
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training import evaluate, generate, model_folder, predict
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings, recipes
from tokmix.training.task import TrainingTask
from tokmix.training.train import run


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


def test_packed_rows_train_like_padded_ones(trained, tmp_path):
    def losses(packed: bool) -> torch.Tensor:
        given = {"train.packed": packed, "train.rows": 8, "train.token_dropout": 0.0, "model.dropout": 0.0, "model.dim": 16}
        engine = Engine(TrainingTask(TokenFiles(trained / "run" / "data"), Settings.of(None, given)), World(), Checkpoints(tmp_path))
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
    predictor = predict.Predictor(model_folder.load(tmp_path / "run"))
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
    rows, counted = (
        [
            run(data, tmp_path / f"{name}-{share}", settings(train__fraction=share, **more, **given), quiet=True)["baseline"][name]
            for share in (1.0, 0.2)
        ]
        for data, name, given in (
            (table, "rows", {}),
            (text, "train_bytes", {"model__stack": "hsm", "model__length": 32, "prepare__vocab": 300}),
        )
    )
    assert rows[1] < 0.3 * rows[0] and counted[1] < 0.3 * counted[0]


def test_a_bag_of_words_that_is_cut_short_warns_nobody(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr("tokmix.training.linear.ITERATIONS", 1)  # warnings are errors here
    record = run(write_table(tmp_path / "t.csv"), tmp_path / "run", settings(train__steps=3, train__baseline=True))
    assert record["baseline"]["accuracy"] > 0


def test_an_absent_scikit_learn_is_said_plainly(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tokmix.training.linear.available", lambda: False)
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


@pytest.mark.parametrize("scale", [1e-4, 1e4, 1e12])
def test_scores_of_any_size_are_learned_alike(tmp_path, scale):
    header, *rows = write_scores(tmp_path / "near.tsv", 300).read_text().splitlines()
    far = [f"{text}\t{float(score) * scale + scale}" for text, score in (row.rsplit("\t", 1) for row in rows)]
    (tmp_path / "far.tsv").write_text("\n".join([header, *far]) + "\n")
    given = settings(train__steps=60, train__lr=1e-2)
    near = run(tmp_path / "near.tsv", tmp_path / "near", given, quiet=True)["figures"]
    record = run(tmp_path / "far.tsv", tmp_path / "far", given, quiet=True)
    share = record["figures"]["rmse"] / record["deviation"]
    assert record["figures"]["pearson"] > 0.8 * near["pearson"] > 0.4 and share < 0.9
    found = evaluate.run(tmp_path / "far", tmp_path / "far" / "data")
    assert found["rmse"] == pytest.approx(record["figures"]["rmse"], rel=1e-4), "the folder tells what was trained"


def test_minutes_to_spare_add_no_step(tmp_path):
    """Also where the last step is one at which the schedule is fitted to the clock."""
    record = run(write_table(tmp_path / "t.csv"), tmp_path / "run", settings(train__steps=20, train__minutes=10.0), quiet=True)
    assert record["cost"]["steps"] == 20 == record["selection"]["history"][-1]["step"]


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
            model_folder.load(tmp_path / "m")
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
    assert "tokenizer.json is damaged" in broken(cut("tokenizer.json", 100))
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
    code = "import sys, tokmix.training.settings; assert not {'torch', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", recipes())
def test_recipes_are_settings(name, tmp_path):
    from tokmix.core.budget import parameter_count
    from tokmix.data.tokens import TokenFiles
    from tokmix.training.task import TrainingTask

    asked = Settings.of(name)
    task = asked.train.task or asked.prepare.get("task") or "classify"
    source = write_text(tmp_path / "t") if task == "lm" else write_table(tmp_path / "t.csv")
    prepare(source, tmp_path / "data", task=task, vocab=300)
    assert parameter_count(TrainingTask(TokenFiles(tmp_path / "data"), asked).config) > 0
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
