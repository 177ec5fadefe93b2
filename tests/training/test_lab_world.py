"""Several processes: the loss curve of one, a checkpoint that either can continue, and no silent copies."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table
from tokmix.data.prepare.pipeline import prepare
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.settings import Settings
from tokmix.training.train import run

ROOT = Path(__file__).parents[2]
GIVEN = {
    "model.stack": "hypermixing(hidden=16), attention(heads=2)", "model.dim": 16, "model.dropout": 0.0, "train.token_dropout": 0.0,
    "train.rows": 9, "train.steps": 50, "train.log_steps": 5, "train.evaluations": 3, "train.baseline": False, "train.device": "cpu",
    "train.lr": 3e-3,
}  # fmt: skip
SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
from tokmix.training.settings import Settings
from tokmix.training.train import run
data, out, given, stop = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
if stop:
    from tokmix.training.engine import Engine
    step = Engine.step
    def limited(self):
        self.stop = self.progress.step + 1 == stop
        step(self)
    Engine.step = limited
try:
    run(data, out, Settings.of(None, given), resume=True, quiet=True)
except KeyboardInterrupt:
    assert stop
from tokmix.cli.main import leave
leave(0)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    prepare(write_table(folder / "t.csv", 200), folder / "data", vocab=200)
    return folder / "data"


def launch(processes: int, data: Path, out: Path, folder: Path, stop: int = 0, **more: object) -> None:
    (folder / "script.py").write_text(SCRIPT)
    how = [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *how, str(folder / "script.py"), str(data), str(out), json.dumps(GIVEN | more), str(stop)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


def losses(out: Path) -> list[float]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [value for entry in entries for value in entry.get("losses", [])]


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    run(data, out, Settings.of(None, GIVEN), quiet=True)
    return out


def test_two_processes_have_the_losses_of_one(data, alone, tmp_path):
    launch(2, data, tmp_path / "run", tmp_path)
    one, two = losses(alone), losses(tmp_path / "run")
    assert len(one) == len(two) == 50 and one[0] > one[-1]
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-5
    record = json.loads((tmp_path / "run" / "model" / "training.json").read_text())
    assert record["cost"]["processes"] == 2
    assert record["figures"]["rows"] == json.loads((alone / "model" / "training.json").read_text())["figures"]["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_accumulate_as_one_does(data, tmp_path, sharded):
    """Gradients pass between them with the last batch of a step alone."""
    more = {"train.accumulate": 3, "train.steps": 10}
    run(data, tmp_path / "one", Settings.of(None, GIVEN | more), quiet=True)
    launch(2, data, tmp_path / "two", tmp_path, **more, **{"train.shard": sharded})
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(two) == 10 and max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-5


@pytest.mark.slow
def test_a_checkpoint_of_two_continues_on_one_and_back(data, alone, tmp_path):
    out = tmp_path / "run"
    for processes, stop in ((2, 20), (1, 35), (2, 0)):
        launch(processes, data, out, tmp_path, stop)
        if stop:
            assert Checkpoints(out / "checkpoints").load()[1]["step"] == stop
            parts = [f"part-{rank}.safetensors" for rank in range(processes)]  # a process writes its own part
            last = Checkpoints(out / "checkpoints").last
            assert processes == 1 or sorted(one.name for one in last.iterdir()) == ["checkpoint.json", *parts]
    one, mixed = losses(alone), losses(out)
    assert len(one) == len(mixed) == 50
    assert max(abs(a - b) for a, b in zip(one, mixed, strict=True)) < 1e-5


@pytest.mark.parametrize(("size", "ended"), [("1", []), ("2", [3])])
def test_a_command_that_is_one_of_several_processes_ends_at_once(size, ended, monkeypatch):
    """Threads of torch's distributed package may abort a process that has done its work while Python shuts down."""
    module, left = importlib.import_module("tokmix.cli.main"), list[int]()
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setattr(module, "main", lambda: 3)
    monkeypatch.setattr(os, "_exit", left.append)
    assert module.entry() == 3 and left == ended


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "start several processes with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 is not below"),
    ],
)
def test_a_wrong_world_is_an_error(data, tmp_path, monkeypatch, given, message):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        run(data, tmp_path / "run", Settings.of(None, GIVEN), quiet=True)
