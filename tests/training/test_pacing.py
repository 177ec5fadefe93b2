"""How a run's time is divided: threads, evaluations, --minutes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training import threads, train
from tokmix.training.checkpoint import Checkpoints, load_tensors
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.pacing import FORWARD, SAMPLE, SHARE, evaluation_plan, steps_that_fit
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

GIVEN = {
    "model.stack": "hypermixing(hidden=16)", "model.dim": 16, "train.rows": 16, "train.steps": 6, "train.save_steps": 2,
    "train.evaluations": 2, "train.baseline": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pacing")
    prepare(write_table(folder / "t.csv", 160), folder / "data", vocab=200)
    return folder / "data"


def test_an_evaluation_on_a_gpu_reads_more_rows_at_once(data: Path) -> None:
    """Steps replay as graphs there, and evaluations do not: they pay for each batch."""
    work = TrainingTask(TokenFiles(data), Settings.of(None, GIVEN | {"train.tokens": 100, "train.rows": 1000}))
    host, gpu = World(), World(device=torch.device("cuda"))
    batches = lambda split, world, shuffle: work.batches(split, world, shuffle=shuffle).steps(0)
    assert batches("test", host, False) >= 2 and batches("test", gpu, False) == 1
    assert batches("train", gpu, True) == batches("train", host, True), "training reads what the run was started with"


def chosen(out: Path) -> dict:
    return json.loads((out / train.RUN).read_text())["chosen"]


# --- evaluations ---------------------------------------------------------------------------------------------------------


def test_evaluations_take_a_tenth_at_most():
    for train_tokens in (1e4, 1e5, 1e6, 1e7):
        for held_tokens in (1e3, 1e5, 1e6):
            rows = int(held_tokens / 20)
            plan = evaluation_plan(None, train_tokens, held_tokens, rows)
            smallest = plan.count == 1 and plan.share * rows <= SAMPLE + 1
            assert plan.count * plan.share * held_tokens * FORWARD <= SHARE * train_tokens * 1.001 or smallest
            assert 1 <= plan.count <= 20 and 0 < plan.share <= 1


def test_first_fewer_evaluations_then_a_sample():
    assert evaluation_plan(None, 1e8, 1e5, 5000).count == 20
    few = evaluation_plan(None, 4e6, 1e6, 50_000)
    assert few.count < 20 and few.share < 1
    assert evaluation_plan(None, 4e6, 1e5, 5000).share == 1 and evaluation_plan(None, 4e6, 1e5, 5000).count == 10
    asked = evaluation_plan(9, 4e6, 1e6, 50_000)
    assert asked.count == 9 and asked.share < 1, "a number that was given is kept"


def test_a_sample_is_the_same_rows_each_time(data):
    task = TrainingTask(TokenFiles(data), Settings.of(None, GIVEN | {"train.holdout": 0.5}))
    part, again = (task.held_batches(World(), 0.5) for _ in range(2))
    assert part.rows.tolist() == again.rows.tolist() and 0 < len(part.rows) < len(task.held)
    assert set(part.rows.tolist()) < set(task.held.tolist())


# --- threads -------------------------------------------------------------------------------------------------------------


def test_the_fastest_number_of_threads_is_chosen_and_few_where_more_gain_nothing():
    times = {1: 1.0, 2: 0.6, 4: 0.9}
    assert threads.choose(lambda: times[torch.get_num_threads()], [1, 2, 4], most_seconds=100) == 2
    assert threads.choose(lambda: 1.0 - 0.001 * torch.get_num_threads(), [1, 2, 4], most_seconds=100) == 1
    slow = []
    threads.choose(lambda: slow.append(0) or 10.0, [1, 2], most_seconds=1)
    assert len(slow) == 4, "one round to warm up, one to measure"


def test_a_trial_leaves_no_trace(data, tmp_path):
    def engine(folder: str) -> Engine:
        task = TrainingTask(TokenFiles(data), Settings.of(None, GIVEN | {"train.average": 0.9, "model.dropout": 0.1}))
        return Engine(task, World(), Checkpoints(tmp_path / folder))

    plain, tried = engine("a"), engine("b")
    with tried.untouched():
        assert tried.time_step() > 0
    assert tried.progress == plain.progress and not any(tensor.any() for tensor in tried.optimizers.tensors())
    for one in (plain, tried):
        one.run()
    other = tried.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in plain.model.state_dict().items())


def test_a_resumed_run_keeps_its_threads(data, tmp_path, monkeypatch):
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "choose", lambda time_step, counts: 2 if time_step() and counts == [1, 2] else 0)
    stopped = Engine.step

    def stop(self):
        stopped(self)
        self.stop = self.progress.step == 3

    monkeypatch.setattr(Engine, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        train.run(data, tmp_path / "run", Settings.of(None, GIVEN), quiet=True)
    assert chosen(tmp_path / "run")["threads"] == 2 and torch.get_num_threads() == 2
    monkeypatch.setattr(Engine, "step", stopped)
    with pytest.raises(ValueError, match=r"started with 2 threads, so it cannot be resumed with train.threads=1"):
        train.run(data, tmp_path / "run", Settings.of(None, GIVEN | {"train.threads": 1}), resume=True, quiet=True)
    monkeypatch.setenv(threads.VARIABLE, "1")  # the record goes before it: the same bits
    record = train.run(data, tmp_path / "run", Settings.of(None, GIVEN), resume=True, quiet=True)
    assert record["cost"]["threads"] == 2


@pytest.mark.parametrize(("setting", "variable", "expected"), [(2, "1", 2), (None, "1", 1), (None, "2,1", 2)])
def test_a_number_that_was_given_is_taken(data, tmp_path, monkeypatch, setting, variable, expected):
    monkeypatch.setenv(threads.VARIABLE, variable)
    monkeypatch.setattr(threads, "choose", lambda *given: pytest.fail("no trial is wanted"))
    record = train.run(data, tmp_path / "run", Settings.of(None, GIVEN | {"train.threads": setting}), quiet=True)
    assert record["cost"]["threads"] == expected == chosen(tmp_path / "run")["threads"]


# --- accumulation, gradient checkpointing, Muon ------------------------------------------------------------------------------


def one_step(data: Path, folder: Path, **more) -> dict[str, torch.Tensor]:
    given = GIVEN | {"model.dropout": 0.0, "train.token_dropout": 0.0, "train.seed": 3} | more
    engine = Engine(TrainingTask(TokenFiles(data), Settings.of(None, given)), World(), Checkpoints(folder))
    _, batches = engine._next_batches(0, 0)
    targets = sum(batch.total for batch in batches)
    torch.manual_seed(5)
    engine.model.train()
    for batch in batches:
        engine.update.forward_backward(batch, batch.weight / targets)
    return {name: parameter.grad for name, parameter in engine.model.named_parameters()}


def test_two_batches_of_a_step_are_one_of_twice_the_size(data, tmp_path):
    """The rows are those of both batches: a batch is cut from rows sorted by length, so the same ones are given twice."""
    given = GIVEN | {"model.dropout": 0.0, "train.token_dropout": 0.0, "train.accumulate": 3}
    engine = Engine(TrainingTask(TokenFiles(data), Settings.of(None, given)), World(), Checkpoints(tmp_path))
    (epoch, inner), batches = engine._next_batches(0, 0)
    assert (epoch, inner) == (0, 3) and len({batch.rows for batch in batches}) == 3
    rows = [row for batch in batches for row in batch.rows]
    engine.update(batches, [1, 2, 3], rate=0.0, keep=0.0)
    found = {name: parameter.grad.clone() for name, parameter in engine.model.named_parameters()}

    from tokmix.core.optional import np
    from tokmix.data.batches.rows import RowBatches

    large = RowBatches(TokenFiles(data)["train"], tokens=10**6, rows=np.array(sorted(rows)), shuffle=False)
    whole = large.batch(0, 0)
    assert whole.total == sum(batch.total for batch in batches)
    engine.update([whole], [1], rate=0.0, keep=0.0)
    for name, parameter in engine.model.named_parameters():
        assert torch.allclose(parameter.grad, found[name], atol=1e-6), name


def test_layers_that_run_again_have_the_same_gradients(data, tmp_path):
    drop = {"model.dropout": 0.3}
    plain = one_step(data, tmp_path, **drop)
    again = one_step(data, tmp_path, **drop, **{"train.checkpoint_layers": True})
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("more", [{"train.optimizer": "muon"}, {"train.accumulate": 3}, {"train.checkpoint_layers": True}], ids=str)
def test_stopped_after_every_step_it_ends_with_the_same_bits(data, tmp_path, more):
    made = Settings.of(None, GIVEN | {"model.dropout": 0.2, "train.average": 0.9} | more)

    def engine(folder: str) -> Engine:
        return Engine(TrainingTask(TokenFiles(data), made), World(), Checkpoints(tmp_path / folder))

    straight = engine("a")
    straight.run()
    broken = engine("b")
    while broken.progress.step < 6:
        broken.step()
        broken.evaluate_if_due()
        broken.save(wait=True)
        broken = engine("b")
        assert broken.restore()
    broken.run()
    other = broken.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in straight.model.state_dict().items())


def test_muon_and_shards_do_not_go_together():
    with pytest.raises(ValueError, match="train.optimizer='muon' needs whole matrices"):
        Settings.of(None, {"train.optimizer": "muon", "train.shard": True})


# --- minutes -------------------------------------------------------------------------------------------------------------


def test_steps_that_fit():
    assert steps_that_fit(10, 5.0, 0.1, 1000) == 60 and steps_that_fit(10, 5.0, 0.1, 30) == 30
    assert steps_that_fit(10, -3.0, 0.1, 1000) == 11, "a run that is late ends at its next step"


def slow_steps(monkeypatch, seconds: float) -> None:
    update = Engine._update

    def slow(self, batches, step):
        time.sleep(seconds)
        return update(self, batches, step)

    monkeypatch.setattr(Engine, "_update", slow)


def test_minutes_count_everything(data, tmp_path, monkeypatch):
    slow_steps(monkeypatch, 0.02)
    evaluate = TrainingTask.evaluate

    def slow_evaluation(self, model, batches, world, size=None):
        time.sleep(0.02)
        return evaluate(self, model, batches, world, size)

    monkeypatch.setattr(TrainingTask, "evaluate", slow_evaluation)
    given = GIVEN | {"train.steps": None, "train.epochs": 5000, "train.minutes": 0.1, "train.evaluations": None, "train.pretrain": 0}
    record = train.run(data, tmp_path / "run", Settings.of(None, given), quiet=True)
    state = Checkpoints(tmp_path / "run" / "checkpoints").load()[1]
    assert record["selection"]["history"][-1]["step"] == record["cost"]["steps"] == state["step"]
    assert state["spent"] > 0 and 3 < state["spent"] + state["seconds"] < 6.6, "of six seconds, some are kept for the end of the run"
    assert state["evaluation_seconds"] < 0.5 * state["seconds"]
    assert 1 <= len(record["selection"]["history"]) <= 20


def test_a_warm_up_that_does_not_fit_is_left_out(data, tmp_path, monkeypatch, capsys):
    slow_steps(monkeypatch, 0.01)
    given = {name: value for name, value in GIVEN.items() if name != "train.steps"}
    settings = Settings.of(None, given | {"train.pretrain": 400, "train.epochs": 400, "train.minutes": 0.04})
    record = train.run(data, tmp_path / "run", settings)
    told = capsys.readouterr().out
    assert "no warm-up: its 400 epochs would take about" in told and "warm_up" not in record["cost"]
    assert chosen(tmp_path / "run")["warm_up"] is False and not (tmp_path / "run" / "warmup").exists()
    assert load_tensors(tmp_path / "run" / "model" / "model.safetensors")[0]
