"""The Python API: the same runs, figures and errors as the command line, on data as a program has it."""

from __future__ import annotations

import csv
import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest

import tokmix

np = pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from tests.lab import QUICK, SMALL, write_table, write_text  # noqa: E402
from tokmix.api.data import Data, as_path, named_rows  # noqa: E402
from tokmix.cli.main import main  # noqa: E402
from tokmix.core.segments import Segments  # noqa: E402

SETTINGS: dict[str, Any] = SMALL | {name.replace("__", "."): value for name, value in QUICK.items()} | {"train.evaluations": 3}
BRIEF: dict[str, Any] = SMALL | {"train.steps": 2, "train.evaluations": 1}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("api") / "films.csv", 400)


@pytest.fixture(scope="module")
def rows(table: Path) -> list[tuple[str, str]]:
    with open(table) as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def run(table: Path) -> tokmix.Run:
    return tokmix.train(table, **SETTINGS)


def test_a_run_without_a_folder_lives_as_long_as_its_model(table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tokmix.train(table, **BRIEF)
    folder, model = run.folder, run.model
    assert capfd.readouterr() == ("", ""), "nothing is printed unless it is asked for"
    assert run.task == "classify" and run.cost["examples"] > 0
    del run
    gc.collect()
    assert folder.is_dir() and model.evaluate(table)["rows"] == 400
    del model
    gc.collect()
    assert not folder.exists()


def test_it_is_the_run_of_the_command_line(table: Path, run: tokmix.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for name, value in SETTINGS.items() if name != "train.baseline" for word in (f"--{name}", str(value))]
    assert main(["train", str(table), "--out", str(tmp_path / "run"), "--no-train.baseline", *options]) == 0
    capsys.readouterr()
    there = tokmix.load(tmp_path / "run")
    assert there.record["figures"] == run.figures and run.figures["accuracy"] > 0.8
    one, other = there.model.state_dict(), run.model.model.state_dict()
    assert all((one[name] == other[name]).all() for name in other)


def test_predictions_are_those_of_the_command_line(run: tokmix.Run, capsys: pytest.CaptureFixture[str]) -> None:
    model, texts = run.model, ["a lovely day", "it was awful", "the road"]
    assert main(["predict", str(run.folder), *texts]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert model.predict(texts) == [one["label"] for one in printed] and model.predict(texts)[:2] == ["good", "bad"]
    chances = model.predict_proba(texts)
    assert chances.shape == (3, 2) and np.allclose(chances.sum(1), 1)
    assert [dict(zip(model.labels, row, strict=True)) for row in chances.tolist()] == [one["probabilities"] for one in printed]
    assert model.predict(texts[0]) == "good" and np.allclose(model.predict_proba(texts[0]), chances[0], atol=1e-6)
    assert model.predict(()) == [] and model.predict_proba([]).shape == (0, 2)
    with pytest.raises(ValueError, match="text 1 is 7, of type int, not text"):
        model.predict(["a", 7])  # type: ignore[list-item]


def test_embeddings_are_means_of_hidden_states(run: tokmix.Run) -> None:
    import torch

    model, texts = run.model, ["a lovely day", "it was awful and then so cold in the house", ""]
    found = model.embed(texts)
    assert found.shape == (3, 16) and found.dtype == np.float32
    for text, row in zip(texts, found, strict=True):
        ids = torch.tensor(model._encoded([text])[0].astype(np.int64))[None]
        with torch.inference_mode():
            hidden = model.model.hidden(ids)
            assert torch.allclose(model.model(ids), model.model.finish(hidden)), "these are what the head reads"
        assert np.allclose(hidden[0].mean(0).numpy(), row, atol=1e-5)
    assert np.allclose(model.embed(texts[0]), found[0], atol=1e-6) and model.embed([]).shape == (0, 16)
    assert Segments.from_lengths([2]).mask.all()


def test_figures_on_data_of_any_kind(run: tokmix.Run, table: Path, rows: list[tuple[str, str]]) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    named = [{"text": text, "label": label} for text, label in rows]
    given = [
        table,
        str(table),
        rows,
        [list(row) for row in rows],
        named,
        columns,
        pandas.DataFrame(columns),
        datasets.Dataset.from_dict(columns),
    ]
    found = [run.model.evaluate(data) for data in given]
    assert all(one["accuracy"] == found[0]["accuracy"] and one["rows"] == 400 for one in found), found
    frame = pandas.DataFrame(columns)
    assert run.model.predict(frame) == run.model.predict(columns["text"]) == run.model.predict(frame["text"])
    assert run.model.predict(table) == run.model.predict(frame)


def test_rows_without_names_take_those_of_the_model(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    other = tokmix.train([{"review": text, "verdict": label} for text, label in rows], **BRIEF, **{"prepare.text": "review"})
    assert other.record["columns"]["target"] == "verdict"
    assert other.model.evaluate(rows)["rows"] == 400
    assert other.model.save(tmp_path / "kept") == tmp_path / "kept"
    assert tokmix.load(tmp_path / "kept").predict("fine") == other.model.predict("fine")


def test_training_reads_lists_frames_and_datasets_alike(rows: list[tuple[str, str]]) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    found = [tokmix.train(data, **BRIEF) for data in (rows, pandas.DataFrame(columns), datasets.Dataset.from_dict(columns))]
    assert len({one.figures["loss"] for one in found}) == 1


def test_a_run_on_rows_in_memory_is_resumed(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    first = tokmix.train(rows, tmp_path / "run", **BRIEF)
    again = tokmix.train(rows, tmp_path / "run", resume=True, **BRIEF)
    assert again.figures == first.figures and again.cost == first.cost
    with pytest.raises(ValueError, match="started on other data"):
        tokmix.train(rows[:-1], tmp_path / "run", resume=True, **BRIEF)


def test_missing_values_and_numbers_of_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", None, "<NA>"], "label": [1.5, 2.5, math.nan], "n": np.array([1, 2, 3], dtype=np.int8)})
    with as_path(frame) as path:
        found = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [one["label"] for one in found] == [1.5, 2.5, None] and [one["n"] for one in found] == [1, 2, 3]
    assert found[1]["text"] is None and found[2]["text"] == "<NA>"


def test_a_language_model_of_texts(tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted(write_text(tmp_path / "texts").glob("*.txt"))]
    small = {"model.stack": "hsm*2", "model.dim": 16, "model.length": 32, "prepare.vocab": 300, "train.steps": 3, "train.baseline": False}
    model = tokmix.train(texts, **small).model
    assert model.task == "lm"
    text = model.generate("the day", max_new=8, seed=1)
    assert text == model.generate("the day", max_new=8, seed=1) == "".join(model.stream("the day", max_new=8, seed=1))
    assert model.embed(["the day", "was"]).shape == (2, 16)
    assert model.evaluate(texts)["bits_per_byte"] > 0
    for refused in (model.predict, model.predict_proba):
        with pytest.raises(ValueError, match="is a model for lm"):
            refused("the day")


def test_maps_of_a_text(run: tokmix.Run) -> None:
    found = run.model.explain("a lovely day")
    assert len(found.maps) == 3 and found.maps[0].weights.shape == (len(found.tokens),) * 2
    with pytest.raises(ValueError, match="generate needs one for lm"):
        run.model.generate("a")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dim": 64}, r"unknown setting 'dim', did you mean settings=\{\"model.dim\": 64\}"),
        ({"minuts": 1}, "unknown setting 'minuts', did you mean 'minutes'"),
        ({"stack": "hsmm"}, "unknown mixer 'hsmm'"),
        ({"epochs": 0}, "train.epochs=0 is not a whole number of at least 1"),
        ({"epochs": 1, "train.epochs": 1}, "train.epochs is given twice"),
        ({"resume": True}, "name its folder with out="),
        ({"config": "nothing"}, "neither a file nor a recipe"),
        ({"config": {"train": {"lr": 1}}}, "config is of type dict, not a file or the name of a recipe"),
        ({"out": ["good", "bad"]}, r"out is of type list, not a path; texts and labels are one argument, \(texts, labels\)"),
        ({"out": ""}, "out='' names no folder"),
        ({"imports": "nothing.py"}, "no file 'nothing.py'"),
        ({"minutes": "soon"}, "train.minutes='soon' should be of type float"),
        ({"stack": ["hsm"]}, "model.stack=.* should be of type str"),
    ],
)
def test_what_does_not_work_is_named(table: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tokmix.train(table, **given)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (7, "data of type int cannot be read"),
        ([], "the data has no rows"),
        ([("a", "b", "c", "d")], "row 0 of the data has 4 values"),
        (["a", 3], "row 1 of the data has the type int"),
        ({"text": ["a"], "label": []}, "the columns differ in length: text 1, label 0"),
        ((["a", "b"], ["x"]), "the columns differ in length: text 2, label 1"),
        ([["a", "b", "c", "d"], ["x"] * 4], r"row 0 of the data has 4 values; .*; two lists are given as a tuple, \(texts, labels\)"),
        ({"text": "a film", "label": "good"}, "column 'text' is 'a film', not a list of values"),
        (b"a film", "data of type bytes cannot be read"),
        ([(b"a film", "good")], "a value of type bytes, b'a film': decode it to text"),
        ([(3, "good"), (4, "bad")], "row 0 of the data: column 'text' holds int, not text"),
        ([("a film", None), ("a day", None)], "the data holds no text"),
        ("", "the path of the data is empty"),
    ],
)
def test_data_that_cannot_be_read_is_named(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tokmix.train(data)


def test_columns_and_rows_of_any_sequence(rows: list[tuple[str, str]]) -> None:
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    wanted = list(named_rows(rows))
    given: list[Data] = [
        (texts, labels), (np.array(texts), np.array(labels)), {"text": np.array(texts), "label": iter(labels)},
        np.array(rows), zip(texts, labels, strict=True), (tuple(row) for row in rows),
    ]  # fmt: skip
    for data in given:
        assert list(named_rows(data)) == wanted
    assert next(named_rows((texts, texts, labels), ["premise", "hypothesis"], "verdict")) == {
        "premise": texts[0], "hypothesis": texts[0], "verdict": labels[0]
    }  # fmt: skip
    assert list(named_rows((("a", "good"), ("b", "bad")))) == [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
    assert next(named_rows([("a", {"y", "x"})])) == {"text": "a", "label": ["x", "y"]}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (None, "texts of type NoneType cannot be read"),
        (7, "texts of type int cannot be read"),
        (b"a day", "texts of type bytes cannot be read"),
        ([None], "text 0 is None, of type NoneType, not text"),
        ([("a", None)], "text 0 is None, of type NoneType, not text"),
        ({"txt": ["a"]}, "the table has no column 'text'; it has: txt, did you mean 'txt'"),
        ({"text": ["a", math.nan]}, "text 1 is None, of type NoneType, not text"),
    ],
)
def test_texts_that_cannot_be_read_are_named(run: tokmix.Run, texts: Any, words: str) -> None:
    for method in (run.model.predict, run.model.predict_proba, run.model.embed):
        with pytest.raises(ValueError, match=words):
            method(texts)


def test_a_table_in_memory_is_predicted_like_a_list(run: tokmix.Run) -> None:
    assert run.model.predict({"text": ["a lovely day", "it was awful"]}) == ["good", "bad"]
    with pytest.raises(ValueError, match="text 0 is None"):
        run.model.explain(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("folder", "device", "words"),
    [
        (None, "cpu", "folder is of type NoneType, not a path"),
        ("", "cpu", "folder='' names no folder"),
        ("nothing", "cpu", "no model folder 'nothing'"),
        (".", "cdua", "unknown device 'cdua'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_named(run: tokmix.Run, folder: Any, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tokmix.load(run.folder if folder == "." else folder, device=device)


def test_wrong_arguments_of_studies_are_named(rows: list[tuple[str, str]]) -> None:
    for wrong, words in (
        (lambda: tokmix.compare(rows, ["hsm"]), "should be a list of stacks"),  # type: ignore[arg-type]
        (lambda: tokmix.compare(["hsm"], rows, match="smallest"), "unknown match 'smallest'; known: largest, first, none"),
        (lambda: tokmix.compare(["hsm"], rows, fractions=0.5), "fractions=0.5 should be a list of numbers"),  # type: ignore[arg-type]
        (lambda: tokmix.tune(rows, space={"lr": {"uniform": [0, 1]}}), "unknown setting 'lr', did you mean 'train.lr'"),
        (lambda: tokmix.cost(["hsm"]), "is of type list; give stacks and folders one by one"),  # type: ignore[arg-type]
        (lambda: tokmix.cost("hsm", lengths=64), "lengths=64 should be a list"),  # type: ignore[arg-type]
        (lambda: tokmix.cost("hsm", lengths="64"), "lengths='64' should be a list"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=words):
            wrong()  # type: ignore[no-untyped-call]
    with pytest.raises(AttributeError, match="no attribute 'trian', did you mean 'train'"):
        tokmix.trian  # noqa: B018


def test_several_processes_need_a_folder(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="name it with out="):
        tokmix.train(table)


def test_short_names() -> None:
    from tokmix.api.settings import full_names

    given = {"stack": "hsm", "minutes": 1, "pretrain": True, "model.dim": 8}
    assert full_names(given) == {"model.stack": "hsm", "train.minutes": 1, "train.pretrain": 30, "model.dim": 8}
    assert full_names({"pretrain": False}) == {"train.pretrain": 0}
    assert full_names({"seed": 1, "settings": {"model.dim": 8, "epochs": 2}}) == {"train.seed": 1, "model.dim": 8, "train.epochs": 2}
    for wrong, words in (
        ({"settings": 3}, "settings is of type int"),
        ({"seed": 1, "settings": {"train.seed": 1}}, "train.seed is given twice"),
    ):
        with pytest.raises(ValueError, match=words):
            full_names(wrong)  # type: ignore[arg-type]


def test_cost_of_stacks_and_of_a_run(run: tokmix.Run) -> None:
    found = tokmix.cost("hsm*2", "attention*2", lengths=[8, 16], dim=16, vocab=11, farthest=64)
    assert [one["stack"] for one in found.record["stacks"]] == ["hsm*2", "attention*2"] and "crossings" in found.record
    assert "hsm" in str(found)
    spent = tokmix.cost(run.folder).record["results"][0]
    assert spent["flops"] == run.cost["flops_training"] * run.cost["examples"]
    with pytest.raises(ValueError, match="--dim is about stacks"):
        tokmix.cost(run.folder, dim=8)


@pytest.mark.slow
def test_compare_and_tune(rows: list[tuple[str, str]], capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    small = {name: value for name, value in BRIEF.items() if name != "model.stack"}
    found = tokmix.compare(["hsm", "fnet"], rows, seeds=1, jobs=1, **small)
    assert {one["name"] for one in found.record["entries"]} >= {"hsm", "fnet"} and "hsm" in found.table
    space = {"train.lr": {"loguniform": [1e-4, 1e-2]}}
    tuned = tokmix.tune(rows, trials=2, workers=1, space=space, **BRIEF)
    assert len(tuned.trials) == 2 and tuned.best is not None and 1e-4 <= tuned.best["train.lr"] <= 1e-2
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="--train.lr 0.1 is set, but the space searches it"):
        tokmix.tune(rows, space=space, **{"train.lr": 0.1})
    with pytest.raises(ValueError, match="should be a list of stacks"):
        tokmix.compare("hsm", rows)
