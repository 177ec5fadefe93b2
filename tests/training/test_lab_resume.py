"""Killed and resumed, a run ends with the very same bits; the processes here are really killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
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
from tokmix.training.checkpoint import Checkpoints, load_tensors
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.progress import Diverged
from tokmix.training.schedule import learning_rate
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask
from tokmix.training.train import run

ROOT = Path(__file__).parents[2]
GIVEN = {
    "model.stack": "hypermixing(hidden=16), attention(heads=2)", "model.dim": 16, "model.dropout": 0.2, "train.rows": 16,
    "train.epochs": 5, "train.save_steps": 3, "train.evaluations": 9, "train.baseline": False,
}  # fmt: skip
# Each step is slowed, so that kills land in the middle of the run, and saving is slowed, so that some land in a save.
SCRIPT = """
import json, os, sys, time, torch
torch.set_num_threads(1)
from tokmix.training import train
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings
data, out, given, slow = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])
step, write = Engine.step, os.fsync
def slow_step(self):
    time.sleep(slow)
    print("step", self.progress.step, flush=True)
    step(self)
def slow_write(handle):
    print("saving", flush=True)
    time.sleep(4 * slow)
    write(handle)
Engine.step = slow_step
os.fsync = slow_write
train.run(data, out, Settings.of(None, given), resume=True, quiet=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    prepare(write_table(folder / "t.csv", 160), folder / "data", vocab=200)
    return folder / "data"


def start(data: Path, out: Path, given: dict, slow: float = 0.0) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(data), str(out), json.dumps(given), str(slow)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for(process: subprocess.Popen, what: str, times: int) -> bool:
    """Read on until that line has come so many times; False where the process ended before."""
    for line in process.stdout:
        times -= line.startswith(what)
        if times <= 0:
            return True
    return False


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "model" / "model.safetensors")[0]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run(data, out, Settings.of(None, GIVEN), quiet=True)
    return out


def test_killed_again_and_again_the_weights_are_the_same(data, whole, tmp_path):
    out, draw, kills = tmp_path / "run", random.Random(1), 0
    plan = [("step", draw.randint(4, 9)), ("saving", 1), ("step", draw.randint(4, 9)), ("saving", 2)]
    for what, times in plan:
        with start(data, out, GIVEN, slow=0.01) as process:
            if wait_for(process, what, times):
                time.sleep(0.01 * draw.random())
                process.send_signal(signal.SIGKILL)
                kills += 1
        assert not (out / "model").exists(), "the run was over before the kill: the test would show nothing"
    assert kills == len(plan)
    with start(data, out, GIVEN) as process:
        process.communicate()
    assert process.returncode == 0
    assert same(weights(out), weights(whole))
    before, after = (json.loads((folder / "model" / "training.json").read_text()) for folder in (whole, out))
    assert before["selection"] == after["selection"] and before["figures"] == after["figures"]
    losses = [[json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()] for folder in (whole, out)]
    told = [[(entry["step"], entry.get("losses"), entry.get("held")) for entry in log] for log in losses]
    assert told[0] == told[1]
    assert sum(len(some) for _, some, _ in told[0] if some) == told[0][-1][0], "a loss for every step, whenever a checkpoint was saved"


def test_every_step_of_a_run_can_be_resumed_from(data, tmp_path):
    """Also where an epoch ends and begins."""
    made = Settings.of(None, GIVEN | {"train.steps": 14, "train.epochs": None})

    def engine(folder: Path) -> Engine:
        return Engine(TrainingTask(TokenFiles(data), made), World(), Checkpoints(folder))

    straight = engine(tmp_path / "a")
    straight.run()
    broken = engine(tmp_path / "b")
    while broken.progress.step < 14:
        broken.step()
        broken.evaluate_if_due()
        broken.save(wait=True)
        broken = engine(tmp_path / "b")
        assert broken.restore()
    broken.run()
    assert broken.progress.epoch > 0 and same(straight.model.state_dict(), broken.model.state_dict())


def test_the_seed_decides(data, whole, tmp_path):
    for seed, equal in ((0, True), (1, False)):
        run(data, tmp_path / f"{seed}", Settings.of(None, GIVEN | {"train.seed": seed}), quiet=True)
        assert same(weights(tmp_path / f"{seed}"), weights(whole)) is equal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_a_clean_checkpoint(data, whole, tmp_path, number):
    given = GIVEN | {"train.save_steps": None}
    with start(data, tmp_path / "run", given, slow=0.02) as process:
        assert wait_for(process, "step", 8)
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    found = Checkpoints(tmp_path / "run" / "checkpoints").load()
    assert found is not None and found[1]["step"] >= 7
    run(data, tmp_path / "run", Settings.of(None, given), resume=True, quiet=True)
    assert same(weights(tmp_path / "run"), weights(whole))


def test_other_settings_or_data_do_not_resume(data, whole, tmp_path):
    with start(data, tmp_path / "run", GIVEN, slow=0.01) as process:
        assert wait_for(process, "step", 5)
        process.kill()
    with pytest.raises(ValueError, match="train.lr=0.5, was None"):
        run(data, tmp_path / "run", Settings.of(None, GIVEN | {"train.lr": 0.5}), resume=True, quiet=True)
    prepare(write_table(tmp_path / "o.csv", 100, seed=5), tmp_path / "other", vocab=200)
    with pytest.raises(ValueError, match="other data"):
        run(tmp_path / "other", tmp_path / "run", Settings.of(None, GIVEN), resume=True, quiet=True)


def test_other_data_of_the_same_name_does_not_resume(tmp_path):
    made = Settings.of(None, GIVEN | {"prepare.vocab": 200, "train.epochs": 1})
    (tmp_path / "other").mkdir()
    table, other = write_table(tmp_path / "t.csv", 80), write_table(tmp_path / "other" / "t.csv", 80, seed=5)
    run(table, tmp_path / "run", made, quiet=True)
    for ended in (True, False):
        if not ended:
            shutil.rmtree(tmp_path / "run" / "model")
        with pytest.raises(ValueError, match=r"other data, so it cannot be resumed on .*other/t\.csv: t\.csv is not what it was"):
            run(other, tmp_path / "run", made, resume=True, quiet=True)
    table.unlink()
    assert run(table, tmp_path / "run", made, resume=True, quiet=True)["figures"], "what was prepared is all that is needed"


def test_killed_before_the_first_checkpoint(tmp_path):
    """While the data was being prepared, say: only what was asked is on disk."""
    table, made = write_table(tmp_path / "t.csv", 80), Settings.of(None, GIVEN | {"prepare.vocab": 200, "train.epochs": 1})
    run(table, tmp_path / "run", made, quiet=True)
    before = weights(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.name != "run.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(table, tmp_path / "run", made, resume=True, quiet=True)
    assert same(before, weights(tmp_path / "run"))


def test_a_run_that_has_ended_is_left_alone(data, whole):
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    record = run(data, whole, Settings.of(None, GIVEN), resume=True, quiet=True)
    assert record["figures"] and (whole / "model" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="other settings.*train.lr=0.5, was None"):
        run(data, whole, Settings.of(None, GIVEN | {"train.lr": 0.5}), resume=True, quiet=True)
    assert run(data.with_name("gone"), whole, Settings.of(None, GIVEN), resume=True, quiet=True) == record


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_good_checkpoint(data, tmp_path):
    made = Settings.of(None, GIVEN | {"train.steps": 12, "train.epochs": None})
    engine = Engine(TrainingTask(TokenFiles(data), made), World(), Checkpoints(tmp_path))
    step = engine.step

    def poisoned() -> None:
        if engine.progress.step == 7:
            with torch.no_grad():
                engine.model.head.bias.fill_(float("nan"))
        step()

    engine.step = poisoned
    with pytest.raises(Diverged, match=r"loss is not a finite number at step 8.*step-00000006\.safetensors"):
        engine.run()
    tensors, state = Checkpoints(tmp_path).load()
    assert state["step"] == 6 and all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_a_damaged_checkpoint_is_passed_over_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, {"weights.a": torch.full((100,), float(step))}, {"step": step})
    assert [path.name for path in checkpoints.files()] == ["step-00000002.safetensors", "step-00000003.safetensors"]
    newest = checkpoints.files()[-1]
    newest.write_bytes(newest.read_bytes()[:200])
    tensors, state = checkpoints.load()
    assert state == {"step": 2} and tensors["weights.a"][0] == 2
    checkpoints.files()[0].write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no checkpoint in .* can be read"):
        checkpoints.load()


def test_a_full_disk_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    import errno

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"weights.a": torch.ones(10)}, {"step": 1})

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left for"):
        checkpoints.save(2, {"weights.a": torch.ones(10)}, {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.safetensors"]


def test_the_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 1.0, 0.1, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
