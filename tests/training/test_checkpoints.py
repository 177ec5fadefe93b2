"""Checkpoints in the background and in parts: what a kill, a full disk or a changed byte leaves is the one before."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")

from tokmix.study.verify import verify
from tokmix.training import checkpoint
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.report import Log

ROOT = Path(__file__).parents[2]


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Writing waits for it."""
    go, save = threading.Event(), checkpoint.save_tensors

    def late(*given):
        assert go.wait(20)
        return save(*given)

    monkeypatch.setattr(checkpoint, "save_tensors", late)
    return go


def test_training_goes_on_while_a_copy_is_written(tmp_path, held):
    checkpoints, weight = Checkpoints(tmp_path), torch.ones(1000)
    checkpoints.begin(1, {"a": weight}, {"step": 1})
    weight.zero_()  # a step of training
    assert not checkpoints.written and checkpoints.last is None
    held.set()
    checkpoints.finish()
    assert checkpoints.written and checkpoints.seconds > 0
    tensors, state = checkpoints.load()
    assert state == {"step": 1} and tensors["a"].eq(1).all()


def test_one_copy_is_held_at_a_time_and_the_order_is_kept(tmp_path, held):
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.begin(1, {"a": torch.ones(10)}, {"step": 1})
    threading.Timer(0.2, held.set).start()
    checkpoints.begin(2, {"a": torch.ones(10)}, {"step": 2})  # waits for the first
    assert [path.name for path in checkpoints.files()][:1] == ["step-00000001.safetensors"]
    checkpoints.finish()
    assert [path.name for path in checkpoints.files()] == ["step-00000001.safetensors", "step-00000002.safetensors"]


def test_what_fails_in_the_background_is_told_in_one_line_and_the_one_before_stays(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": torch.ones(10)}, {"step": 1})

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    checkpoints.begin(2, {"a": torch.ones(10)}, {"step": 2})
    checkpoints.settle()
    with pytest.raises(OSError, match=r"no space left for .*step-00000002.safetensors; what was saved before is untouched"):
        checkpoints.begin(3, {"a": torch.ones(10)}, {"step": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.safetensors"]
    assert checkpoints.load()[1] == {"step": 1}


def test_the_log_is_on_the_disk_before_the_checkpoint_is(tmp_path, monkeypatch):
    """A power cut leaves no gap in it: a resumed run writes only the lines after its checkpoint."""
    done: list[str] = []
    sync = os.fsync

    def synced(handle: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name.split(".partial")[0])
        sync(handle)

    monkeypatch.setattr("os.fsync", synced)
    log = Log(tmp_path / "log.jsonl", quiet=True)
    log.open(0)
    del done[:]
    log({"step": 1, "total": 2, "epoch": 0, "loss": 1.0, "losses": [1.0], "tokens": 5, "seconds": 0.1})
    Checkpoints(tmp_path / "checkpoints").save(1, {"a": torch.ones(1)}, {"step": 1})
    assert done == ["log.jsonl", ".step-00000001.safetensors", "checkpoints"]
    log({"step": 2, "total": 2, "epoch": 0, "loss": 1.0, "losses": [1.0], "tokens": 5, "seconds": 0.2})
    log.close()
    assert done[3:] == ["log.jsonl"]


def test_what_a_kill_kept_from_being_removed_goes_when_the_run_is_resumed(tmp_path):
    Checkpoints(tmp_path, keep=3).save(1, {"a": torch.ones(1)}, {})
    for step in (2, 3):
        Checkpoints(tmp_path, keep=3).save(step, {"a": torch.ones(1)}, {"step": step})
    files = Checkpoints(tmp_path).files()
    files[2].write_bytes(b"damaged")
    checkpoints = Checkpoints(tmp_path, keep=1)
    assert checkpoints.resume().state == {"step": 2}
    assert checkpoints.files() == files[1:], "the older one is gone, and the damaged one stays until there is another"


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": torch.ones(2, 3)}, {})
    found, weight = checkpoints.newest(), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"does not belong to this run: a is \[2, 3\], not \[3, 2\]"):
        found.read({"a": weight}, lambda tensor, full: full)
    with pytest.raises(ValueError, match="only one of the two has 'b'"):
        found.read({"a": torch.zeros(2, 3), "b": weight}, lambda tensor, full: full)
    assert weight.eq(0).all()


PARTS = """
import json, os, sys, threading
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from tokmix.training import checkpoint_parts
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.report import Log
from tokmix.training.distributed import World

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
world = World(dist.get_rank(), dist.get_world_size())
mesh = init_device_mesh("cpu", (world.size,))
folder = Path(sys.argv[1])


def tensors(value):
    rows = torch.arange(21.0).reshape(7, 3) + value
    row = torch.tensor([[value, 2.0]])  # one row: the second process has none of it
    shards = {name: distribute_tensor(full, mesh, [Shard(0)]) for name, full in (("rows", rows), ("row", row))}
    return shards | {"whole": torch.full((4,), value), "scalar": torch.tensor(value), "count": torch.tensor([3, 4])}


checkpoints = Checkpoints(folder, keep=2)
for step in (1, 2, 3):
    checkpoints.save(step, tensors(float(step)), {"step": step}, world)
assert [path.name for path in checkpoints.files()] == ["step-00000002", "step-00000003"]

# Nothing is sent while it is written: a message of training's may be on its way.
go, save = threading.Event(), checkpoint_parts.save_tensors
checkpoint_parts.save_tensors = lambda *given: go.wait(20) and save(*given)
mine = tensors(4.0)
checkpoints.begin(4, mine, {"step": 4}, world)
mine["whole"].zero_()
world.sum(torch.ones(1))
assert not checkpoints.written and checkpoints.last.name == "step-00000003"
go.set()
checkpoints.finish(world)
checkpoint_parts.save_tensors = save
assert checkpoints.last.name == "step-00000004"


# The second process finds the disk full: both say so, and what was there stays.
def full(*given):
    raise OSError(28, "no space left for the part of one process")


if world.rank == 1:
    checkpoint_parts.save_tensors = full
try:
    checkpoints.save(5, tensors(5.0), {"step": 5}, world)
    raise SystemExit("no error")
except OSError as error:
    assert "the part of one process" in str(error), error
checkpoint_parts.save_tensors = save
world.wait()
assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"], list(folder.iterdir())

# A changed byte in the part that the second process checks: both go back.
newest = checkpoints.last
world.wait()
if world.first:
    part = newest / "part-1.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
world.wait()
found = checkpoints.newest(world)
assert found.state == {"step": 3} and "part-1.safetensors is damaged" in checkpoints.passed_over[0], checkpoints.passed_over
into = tensors(0.0)
found.read(into, lambda tensor, full: full)
for name, wanted in tensors(3.0).items():
    assert torch.equal(*(one.full_tensor() if hasattr(one, "full_tensor") else one for one in (into[name], wanted))), name
checkpoints.save(4, tensors(4.5), {"step": 4}, world)  # in place of the damaged one
world.wait()
from tokmix.cli.main import leave
leave(0)
"""


@pytest.mark.slow
def test_two_processes_write_a_part_each_and_one_reads_them(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "parts.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    folder = tmp_path / "run" / "checkpoints"
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    checkpoints = Checkpoints(folder)
    tensors, state = checkpoints.load()
    assert state == {"step": 4} and not checkpoints.passed_over
    assert torch.equal(tensors["rows"], torch.arange(21.0).reshape(7, 3) + 4.5) and tensors["row"].tolist() == [[4.5, 2.0]]
    assert tensors["scalar"] == 4.5 and tensors["count"].tolist() == [3, 4] and tensors["count"].dtype == torch.int64
    parts = [path.stat().st_size for path in sorted(checkpoints.last.glob("part-*"))]
    assert len(parts) == 2 and min(parts) > 0
    (tmp_path / "run" / "run.json").write_text(json.dumps({"source": "x", "settings": {}}))
    assert [one.state for one in verify(tmp_path / "run") if "step-" in one.path.name] == ["whole", "whole"]
    # A part of one checkpoint in another, a part that is gone, a record that was changed: never a mixture, always the one before.
    for harm in (_swap_parts, _drop_part, _edit_record):
        harm(*checkpoints.files())
        assert checkpoints.load()[1] == {"step": 3} and checkpoints.passed_over
        _undo(checkpoints.files()[-1])


def _swap_parts(older: Path, newer: Path) -> None:
    for name in ("part-1.safetensors",):
        (newer / name).rename(newer / "kept")
        (newer / name).write_bytes((older / name).read_bytes())


def _drop_part(older: Path, newer: Path) -> None:
    (newer / "part-1.safetensors").rename(newer / "kept")


def _undo(newer: Path) -> None:
    if (newer / "kept").exists():
        (newer / "kept").rename(newer / "part-1.safetensors")


def _edit_record(older: Path, newer: Path) -> None:
    path = newer / "checkpoint.json"
    path.write_text(path.read_text().replace('"step": 4', '"step": 6'))
