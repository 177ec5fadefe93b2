"""Runs side by side in one process give what each gives alone: the same bits, files and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")
pytest.importorskip("optuna")

from tests.comparison import BASE, Here, prepared
from tests.lab import settings
from tests.tuning import SEED, SPACE, TRIALS, small, trials_of
from tokmix.runs import pool
from tokmix.study.compare import run as comparison
from tokmix.study.tune import search
from tokmix.study.tune.space import Space
from tokmix.training import train
from tokmix.training.checkpoint import load_tensors
from tokmix.training.engine import Engine
from tokmix.training.progress import Diverged
from tokmix.training.settings import Settings
from tokmix.training.side_by_side import MOST, runs_at_once, train_all


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("side"))


def runs() -> dict[str, Settings]:
    """Other seeds, rates, shares of dropout, another stack, a warm-up in some, and one that diverges."""
    common = {"train.rows": 16, "train.evaluations": 2, "model.dropout": 0.2, "train.epochs": 2, "train.pretrain": 0}
    made = {
        "one": settings(**common),
        "other seed": settings(**common | {"train.seed": 1, "train.lr": 3e-3, "train.pretrain": 1}),
        "other stack": settings(**common | {"model.stack": "attention(heads=2)", "model.dropout": 0.1, "train.steps": 9}),
        "diverging": settings(**common | {"train.lr": 1e30}),
    }
    return {name: replace(one, prepare={}) for name, one in made.items()}  # the data is prepared


def sessions(data: Path, folder: Path, resume: bool = False) -> list:
    return [
        train.session(data, folder / name, given, resume=resume, quiet=True, side_by_side=len(runs())) for name, given in runs().items()
    ]


def same_models(one: Path, other: Path) -> bool:
    tensors, others = (load_tensors(folder / "model" / "model.safetensors")[0] for folder in (one, other))
    return tensors.keys() == others.keys() and all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [loss for entry in entries for loss in entry.get("losses", [])]


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for name, given in runs().items():
        if name == "diverging":
            with pytest.raises(Diverged):
                train.run(data, folder / name, given, quiet=True)
        else:
            train.run(data, folder / name, given, quiet=True)
    return folder


def test_each_has_the_bits_that_it_has_alone(data, alone, tmp_path):
    found = dict(zip(runs(), train_all(sessions(data, tmp_path)), strict=True))
    assert isinstance(found["diverging"], Diverged) and found["diverging"].cost is not None
    assert not (tmp_path / "diverging" / "model").exists()
    for name in ("one", "other seed", "other stack"):
        assert same_models(tmp_path / name, alone / name) and losses(tmp_path / name) == losses(alone / name)
        before = json.loads((alone / name / "model" / "training.json").read_text())
        assert found[name]["figures"] == before["figures"] and found[name]["selection"] == before["selection"]
        assert (found[name]["cost"]["side_by_side"], before["cost"]["side_by_side"]) == (4, 1)
    assert not same_models(tmp_path / "one", tmp_path / "other seed")


@pytest.mark.slow
def test_stopped_together_they_end_with_the_same_bits(data, alone, tmp_path, monkeypatch):
    """Each saves a checkpoint at its own step, the warm-up of one included, and all go on from there."""
    step, taken = Engine.step, [0]

    def stopping(self):
        step(self)
        taken[0] += 1
        if taken[0] == 20:
            for engine in engines:
                engine.stop = True

    engines: list[Engine] = []
    start = Engine.start
    monkeypatch.setattr(Engine, "start", lambda self: engines.append(self) or start(self))
    monkeypatch.setattr(Engine, "step", stopping)
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        train_all(sessions(data, tmp_path))
    assert list(tmp_path.glob("*/checkpoints/*")) and not list(tmp_path.glob("*/model"))
    monkeypatch.setattr(Engine, "step", step)
    train_all(sessions(data, tmp_path, resume=True))
    for name in ("one", "other seed", "other stack"):
        assert same_models(tmp_path / name, alone / name)


@pytest.mark.slow
def test_compare_says_the_same_either_way(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "Pool", Here)
    stacks, said = ["hypermixing(hidden=16)", "attention(heads=2)"], []
    found = {
        way: comparison.compare(stacks, data, tmp_path / way, BASE, seeds=2, side_by_side=way, say=said.append)
        for way in ("no", "yes", "auto")
    }
    scores = {way: [(run["entry"], run["seed"], run["score"]) for run in one["runs"]] for way, one in found.items()}
    assert scores["yes"] == scores["no"] == scores["auto"] and found["yes"]["tests"] == found["no"]["tests"]
    beside = {way: [run["cost"].get("side_by_side") for run in one["runs"] if run["entry"] in stacks] for way, one in found.items()}
    assert beside == {"no": [1] * 4, "yes": [2] * 4, "auto": [1] * 4}, "by itself on a GPU alone"
    assert any("up to 2 side by side" in line for line in said)
    assert all(run["cost"]["energy_joules"] is None for run in found["yes"]["runs"] if run["entry"] in stacks), "one counter for both"


@pytest.mark.slow
def test_a_comparison_that_was_cut_short_goes_on_with_what_is_left(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "Pool", Here)
    first = comparison.compare(["attention(heads=2)"], data, tmp_path / "out", BASE, seeds=2, side_by_side="yes", say=lambda line: None)
    (result,) = (tmp_path / "out" / "runs").glob("attention*-seed1-*/result.json")
    result.unlink()
    said = []
    again = comparison.compare(
        ["attention(heads=2)"], data, tmp_path / "out", BASE, seeds=2, side_by_side="yes", resume=True, say=said.append
    )
    assert said[0] == "2 of 3 runs are done already" and "1 runs, 1 at a time" in said[1]
    assert [run["score"] for run in again["runs"]] == [run["score"] for run in first["runs"]]


@pytest.mark.slow
def test_tune_finds_the_same_either_way(data, tmp_path):
    for way in ("no", "yes"):
        search.run(
            data,
            tmp_path / way,
            replace(small(), prepare={}),
            trials=TRIALS,
            space=Space.of(SPACE),
            workers=1,
            side_by_side=way,
            quiet=True,
        )
    assert trials_of(tmp_path / "yes") == trials_of(tmp_path / "no")
    costs = [trial["cost"] for trial in json.loads((tmp_path / "yes" / "tune.json").read_text())["trials"]]
    assert {cost["side_by_side"] for cost in costs if cost} == {min(MOST, TRIALS)} and SEED == 3


def test_a_time_of_one_run_is_not_shared(data, tmp_path):
    timed = replace(small(), train=replace(small().train, minutes=2.0))
    assert runs_at_once("no", True, timed) == (1, None) and runs_at_once("auto", False, timed) == (1, None)
    count, why = runs_at_once("auto", True, timed)
    assert count == 1 and why == "runs are trained one by one: train.minutes=2 is the time of a run by itself"
    assert runs_at_once("auto", True, small()) == (MOST, None) == runs_at_once("yes", False, small())
    with pytest.raises(ValueError, match="unknown side_by_side 'maybe'; known: auto, yes, no"):
        comparison.compare(["attention"], data, tmp_path / "out", BASE, side_by_side="maybe")
    assert not (tmp_path / "out").exists()
