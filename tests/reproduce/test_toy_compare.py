"""`compare --data shapes`: the toy task, its seeds and fractions, what it says of bad input."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("numpy")

from reproduce.toy import compare as toy_task
from reproduce.toy import model as toy
from tokmix.cli.main import main

TINY = {"n": 40, "epochs": 1, "seeds": 2, "test": 30, "device": "cpu"}


def test_shapes(tmp_path, monkeypatch):
    told = []
    found = toy_task.compare(["none", "hypermixing", "hsm"], tmp_path / "out", **TINY, fractions=(0.5, 1), jobs=2, say=told.append)
    assert (found["data"], found["metric"], found["higher_is_better"], found["match"]) == ("shapes", "error x100", False, None)
    assert [entry["name"] for entry in found["entries"]] == ["none", "hypermixing", "hsm", "bag of words"]
    train, test = toy_task.shapes.split(40, 30, seed=0)
    for name, share, seed in (("none", 1, 0), ("hypermixing", 0.5, 1)):
        part = train.take(slice(round(40 * share)))
        model = toy.build(toy.ITEMS[name], part, seed)
        toy.train(model, part, epochs=1, seed=seed)
        (one,) = (r for r in found["runs"] if (r["entry"], r["fraction"], r["seed"]) == (name, share, seed))
        assert one["score"] == pytest.approx(toy.error(model, test), rel=1e-4)
        assert one["cost"]["examples"] == len(part) and one["cost"]["parameters"] == model.parameter_count()
    assert len(found["tests"]) == 2 * 3 and all(test["n_examples"] == 30 for test in found["tests"])
    assert any(line.startswith("bag of words") and "not available" in line for line in told)
    monkeypatch.setattr(toy, "train", lambda *given, **named: pytest.fail("trained again"))
    again = toy_task.compare(["none", "hypermixing", "hsm"], tmp_path / "out", **TINY, fractions=(0.5, 1), resume=True, say=told.append)
    assert again["table"] == found["table"] and again["tests"] == found["tests"]


def test_a_toy_model_that_diverges_is_reported(tmp_path, monkeypatch):
    def train(model, data, *, seed, **rest):
        if seed == 1:
            with torch.no_grad():
                model.back[2].bias.fill_(math.nan)

    monkeypatch.setattr(toy, "train", train)
    found = toy_task.compare(["none", "attention"], tmp_path / "out", **TINY, say=lambda line: None)
    assert [one["state"] for one in found["runs"][:4]] == ["finished", "failed"] * 2
    assert found["table"][0]["n"] == 1 and found["table"][0]["failed"] == 1 and found["tests"][0]["n_seeds"] == 1


def test_the_whole_toy_models_flops_are_torchs(monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("none", "mlp_mixer", "hypermixing"):
        model, counter = toy.ShapesModel(toy.ITEMS[name]), FlopCounterMode(display=False)
        with counter:
            model(torch.randn(1, 100))
        assert counter.get_total_flops() == model.whole_cost().matmul


def test_on_a_gpu_the_seeds_of_a_model_go_together(tmp_path, monkeypatch):
    """What is recorded there is tested on a GPU; here, who is asked for what."""
    asked = []

    def train(models, sets, seeds, *, epochs, batch, begin):
        begin()
        assert len(models) == len(sets) == len(seeds) and batch == 100
        asked.append((models[0].item, tuple(seeds), len(sets[0]), epochs))

    monkeypatch.setattr(toy, "train_all", train)
    task = toy_task.ShapesRuns(tmp_path, 40, 3, 30, torch.device("cpu"), lambda line: None)
    for found in task._groups([("none", 1.0, [0, 1]), ("hsm", 0.5, []), ("attention", 0.5, [1])]):
        assert all(one.score is not None for one in found)
    assert asked == [("none", (0, 1), 40, 3), (toy.ITEMS["attention"], (1,), 20, 3)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["none", "--train.lr", "1"], "takes no --train.lr"),
        (["none", "--config", "tiny"], "takes no --config"),
        (["none", "--match", "first"], "takes no --match first"),
        (["none", "--n", "0"], "n=0"),
        (["none", "--epochs", "0"], "epochs=0"),
        (["non"], "unknown mixer"),
        (["attention*2"], "takes one mixer"),
    ],
)
def test_what_does_not_work_on_shapes_is_said_in_one_line(given, told, tmp_path, capsys):
    assert main(["compare", *given, "--data", "shapes", "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert told in shown and shown.count("\n") == 1
    assert not (tmp_path / "out").exists()
