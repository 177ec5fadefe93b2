"""What pretraining adds to a run: a triangle, batches that grow, documents apart, and a head for the hidden tokens alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import tokmix
from tests.lab import write_table, write_text
from tokmix.core.model import Model, ModelConfig
from tokmix.data.batches.mask import IGNORE
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training import model_folder
from tokmix.training.distributed import World
from tokmix.training.replaced_tokens import Detector, generator_stack
from tokmix.training.schedule import Growth, learning_rate
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask, asked_tokens
from tokmix.training.task import loss as loss_of

SMALL = {"model.dim": 16, "model.length": 16, "train.threads": 1, "prepare.vocab": 200, "stack": "hsm", "train.tokens": 64}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "texts", documents=120)


@pytest.fixture(scope="module")
def tokens(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokens") / "tokens"
    prepare(text, out, progress=False, task="mlm", vocab=200)
    return out


def test_a_triangle_rises_and_falls_in_straight_lines() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.2, 0.0, "triangle") for step in range(100)]
    assert rates[19] == 1.0 and rates[9] == pytest.approx(0.5) and rates[60] == pytest.approx(0.5) and rates[99] < 0.02
    assert learning_rate(5000, 10_000, 1.0, 0.5, 0.0, "triangle") == 1.0  # no bound on the rise
    assert learning_rate(99, 100, 1.0, 0.2, 0.1, "triangle") == pytest.approx(0.1, abs=0.02)


def test_batches_grow_to_the_number_that_was_given() -> None:
    growth = Growth(4, 0.5)
    counts = [growth.at(step, 1000) for step in range(1000)]
    assert counts[0] == 1 and counts[500:] == [4] * 500 and counts == sorted(counts)
    assert sum(counts) / 1000 == pytest.approx(growth.mean(), rel=0.01)
    assert sum(counts[250:]) / 750 == pytest.approx(growth.mean(0.25), rel=0.01)
    assert Growth(4, 0.0).at(0, 10) == 4 and Growth(4, 0.0).mean(0.0, 0.3) == 4


def test_a_run_with_growing_batches_resumes_exactly(text: Path, tmp_path: Path) -> None:
    grown = {**SMALL, "train.accumulate": 3, "train.grow": 0.8, "train.steps": 10, "train.save_steps": 4, "train.keep": 5}
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    tokmix.pretrain(text, whole, **grown)
    tokmix.pretrain(text, parted, **grown)
    for file in (parted / "checkpoints").iterdir():
        if "0000004" not in file.name:
            file.unlink()
    (parted / "model").rename(tmp_path / "away")
    tokmix.pretrain(text, parted, resume=True, **grown)
    one, other = (model_folder.load(folder).model.state_dict() for folder in (whole, parted))
    assert all(torch.equal(one[name], other[name]) for name in one)
    seen = [json.loads(line)["tokens"] for line in (whole / "log.jsonl").read_text().splitlines() if "losses" in line]
    assert 10 * 64 < seen[-1] < 30 * 64


def test_growing_ends_within_its_time(text: Path, tmp_path: Path) -> None:
    run = tokmix.pretrain(text, tmp_path / "run", minutes=0.05, **{**SMALL, "train.accumulate": 8, "train.grow": 1.0, "train.epochs": 9999})
    assert 0.3 < run.cost["seconds"] < 6


def test_documents_apart_do_not_see_each_other(tokens: Path) -> None:
    settings = Settings.of(
        None, {"train.task": "mlm", "train.documents": True, "model.length": 16, "model.stack": "hypermixing", "model.dim": 8}
    )
    work = TrainingTask(TokenFiles(tokens), settings)
    batches = work.train_batches(World())
    packed = next(batch for batch in batches.epoch(0) if batch.segments is not None and batch.segments.packed)
    model = work.build(torch.device("cpu")).eval()
    before = model(packed.ids, packed.segments)
    assert packed.segments is not None
    first = packed.segments.ids == packed.segments.ids.amax(1, keepdim=True)  # the last document of each row
    other = torch.where(first, packed.ids, (packed.ids + 7) % 60)
    after = model(other, packed.segments)
    torch.testing.assert_close(before[first], after[first], rtol=0, atol=0)


def test_the_head_for_hidden_tokens_alone_gives_the_same_loss() -> None:
    torch.manual_seed(0)
    model = Model(ModelConfig(stack="hsm", dim=8, vocab=30, head="mlm", causal=False, max_len=8))
    ids, targets = torch.randint(0, 30, (3, 8)), torch.full((3, 8), IGNORE)
    targets[0, 2], targets[2, 7] = 4, 9
    at = asked_tokens(targets)
    some = model(ids, None, at)
    assert some.shape == (2, 30)
    torch.testing.assert_close(loss_of("mlm", some, targets.flatten()[at]), loss_of("mlm", model(ids), targets))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"train.grow": 0.5}, "that is 1: give both"),
        ({"train.grow": 1.5, "train.accumulate": 2}, "train.grow"),
        ({"train.schedule": "square"}, "train.schedule"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings.of(None, given)


@pytest.mark.slow
def test_replaced_tokens_are_learned_and_the_encoder_is_a_start(text: Path, tmp_path: Path) -> None:
    learning = {**SMALL, "stack": "hsm*2, hypermixing", "model.dim": 32, "train.steps": 250, "train.lr": 3e-3, "train.tokens": 512}
    run = tokmix.pretrain(text, tmp_path / "rtd", objective="rtd", **learning)
    history = [one["detected"] for one in run.record["selection"]["history"]]
    assert run.task == "rtd" and max(history) > 0.6 and run.figures["loss"] > 0
    trained = model_folder.load(tmp_path / "rtd")
    assert type(trained.model) is Model and trained.model.config.head == "tag"
    assert not any("generator" in name for name in trained.model.state_dict())
    assert run.cost["parameters"] == trained.model.parameter_count()
    with pytest.raises(ValueError, match="figures are in training.json"):
        run.model.evaluate(text)
    table = write_table(tmp_path / "films.csv")
    started = tokmix.train(table, tmp_path / "run", start=str(tmp_path / "rtd"), epochs=1, **{"train.baseline": False, "train.threads": 1})
    assert started.model.predict("a fine film") in ("good", "bad")


def test_replaced_tokens_resume_exactly(text: Path, tmp_path: Path) -> None:
    given = {**SMALL, "objective": "rtd", "train.steps": 8, "train.save_steps": 4, "train.keep": 5, "stack": "hsm*2"}
    tokmix.pretrain(text, tmp_path / "run", **given)
    whole = model_folder.load(tmp_path / "run").model.state_dict()
    (tmp_path / "run" / "model").rename(tmp_path / "away")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        if "0000004" not in file.name:
            file.unlink()
    tokmix.pretrain(text, tmp_path / "run", resume=True, **given)
    again = model_folder.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_detector_puts_guesses_where_tokens_were_hidden_and_nowhere_else() -> None:
    torch.manual_seed(0)
    config = ModelConfig(stack="hsm*4", dim=8, vocab=30, head="tag", causal=False, max_len=8)
    model = Detector(config, generator_stack(config.stack), mask=5)
    assert len(model.generator_layers) == 1
    ids = torch.randint(6, 30, (3, 8))
    ids[0, 2] = ids[1, 1] = 5
    at = (ids == 5).flatten().nonzero().flatten()
    guesses, filled, decisions = model(ids, None, torch.cat([at, at.new_tensor([7])]))  # 7 is one that is not hidden
    assert guesses.shape == (3, 30) and decisions.shape == (3, 8, 2)
    assert torch.equal(filled[ids != 5], ids[ids != 5])
    torch.manual_seed(1)
    drawn = torch.stack([model(ids, None, at)[1].flatten()[at[0]] for _ in range(300)])
    expected = model.guess(ids, None, at)[0].softmax(-1)
    assert (torch.bincount(drawn, minlength=30) / 300 - expected).abs().max() < 0.12
