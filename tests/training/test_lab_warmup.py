"""A warm-up before the task: when there is one, that it reaches the model, that it resumes, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training import warmup
from tokmix.training.checkpoint import load_tensors
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask
from tokmix.training.train import run

GIVEN = {
    "model.stack": "hypermixing(hidden=16)", "model.dim": 16, "train.rows": 16, "train.epochs": 2, "train.pretrain": 2,
    "train.save_steps": 3, "train.evaluations": 2, "train.baseline": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    prepare(write_table(folder / "t.csv", 160), folder / "data", vocab=200)
    return folder / "data"


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "model" / "model.safetensors")[0]


def test_small_tables_of_single_texts_get_one_unless_the_length_was_said(data):
    def epochs(**given) -> int:
        return TrainingTask(TokenFiles(data), Settings.of(None, {f"train.{name}": value for name, value in given.items()})).warm_up_epochs

    assert epochs() >= 30 and epochs(minutes=1.0) >= 30
    assert epochs(pretrain=0) == epochs(epochs=3) == epochs(steps=10) == 0
    assert epochs(pretrain=4) == epochs(pretrain=4, steps=10) == 4


def test_pairs_get_none_but_may_ask(tmp_path):
    rows = "\n".join(f"w{i % 7} a,w{i % 5} b,{'xy'[i % 2]}" for i in range(60))
    (tmp_path / "t.csv").write_text(f"premise,hypothesis,label\n{rows}\n")
    prepare(tmp_path / "t.csv", tmp_path / "data", vocab=100)
    files = TokenFiles(tmp_path / "data")
    assert TrainingTask(files, Settings()).warm_up_epochs == 0
    assert TrainingTask(files, Settings.of(None, {"train.pretrain": 3})).warm_up_epochs == 3


def test_the_run_begins_with_the_weights_of_the_warm_up_and_counts_its_cost(data, tmp_path, monkeypatch):
    begun = {}
    begin_with = Engine.begin_with

    def watch(self, given):
        begin_with(self, given)
        begun.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})

    monkeypatch.setattr(Engine, "begin_with", watch)
    record = run(data, tmp_path / "run", Settings.of(None, GIVEN), quiet=True)
    left, _ = load_tensors(tmp_path / "run" / warmup.FOLDER / warmup.WEIGHTS)
    assert left and all(torch.equal(begun[name], tensor) for name, tensor in left.items())
    assert set(begun) - set(left) == {"head.weight", "head.bias"}
    assert 0.3 < float(left["embedding.weight"].std()) < 3, "as an input, not as the small output matrix it was"
    cost, warm = record["cost"], record["cost"]["warm_up"]
    own = cost["examples"] - warm["examples"]
    assert own == warm["examples"], "two epochs each"
    assert cost["seconds"] > warm["seconds"] > 0 and cost["steps"] == 2 * warm["steps"]
    total = cost["flops_training"] * cost["examples"]
    assert total > warm["flops_training"] * warm["examples"] > total / 2, "the output matrix of the vocabulary is most of it"
    without = run(data, tmp_path / "without", Settings.of(None, GIVEN | {"train.pretrain": 0}), quiet=True)
    assert "warm_up" not in without["cost"]
    assert not torch.equal(weights(tmp_path / "run")["core.embedding.weight"], weights(tmp_path / "without")["core.embedding.weight"])


def test_stopped_anywhere_and_resumed_it_ends_the_same(data, tmp_path, monkeypatch):
    run(data, tmp_path / "whole", Settings.of(None, GIVEN), quiet=True)
    steps = json.loads((tmp_path / "whole" / "model" / "training.json").read_text())["cost"]["steps"]
    step, taken = Engine.step, [0]

    def breaking(self):
        taken[0] += 1
        if taken[0] % 7 == 0:
            raise RuntimeError("pulled the plug")
        step(self)

    monkeypatch.setattr(Engine, "step", breaking)
    broken = 0
    for _ in range(steps):
        try:
            run(data, tmp_path / "broken", Settings.of(None, GIVEN), resume=True, quiet=True)
            break
        except RuntimeError:
            broken += 1
    assert broken > 3
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert whole.keys() == resumed.keys() and all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_what_cannot_be_is_said(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("some words to read on and on\n" * 200)
    assert main(["train", str(tmp_path / "t.txt"), "--out", str(tmp_path / "run"), "--pretrain", "--train.steps", "2"]) == 1
    assert "train.pretrain comes before classify or regress, not before lm" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
