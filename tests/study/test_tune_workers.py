"""Several workers, as processes, some of which are really killed: the trials are those of one worker, bit for bit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("optuna")

from tests.lab import write_table
from tests.tuning import SPACE, TRIALS, at_step_5, slow_file, small, start, trials_of
from tokmix.study.tune.search import run
from tokmix.study.tune.space import Space


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """One worker, undisturbed."""
    folder, before = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    write_table(folder / "t.csv")
    run(folder / "t.csv", folder / "study", small(), trials=TRIALS, space=Space.of(SPACE), workers=1, quiet=True)
    assert torch.get_num_threads() == before
    return folder


def finish(process) -> tuple[str, str]:
    said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def wait_until_gone(pids: list[int]) -> None:
    for _ in range(600):
        if not any(_alive(pid) for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {[pid for pid in pids if _alive(pid)]}")


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_three_workers_of_which_one_is_killed_give_the_trials_of_one(alone, tmp_path):
    slow, where = slow_file(tmp_path)
    process = start(alone / "t.csv", tmp_path / "study", "--workers", "3", "--import", str(slow))
    os.kill(at_step_5(where, process)[0], signal.SIGKILL)
    _, said = finish(process)
    assert "its task is done again: its process was killed by signal 9" in said
    assert trials_of(tmp_path / "study") == trials_of(alone / "study")


@pytest.mark.slow
def test_two_commands_are_one_search(alone, tmp_path):
    """They start at the same time, in a folder that is not there yet."""
    processes = [start(alone / "t.csv", tmp_path / "study", "--workers", "1") for _ in range(2)]
    found = []
    for process in processes:
        finish(process)
        found.append(trials_of(tmp_path / "study"))
    assert found == [trials_of(alone / "study")] * 2
    lines = (tmp_path / "study" / "journal.log").read_text().splitlines()
    assert sum('"op_code":4,' in line for line in lines) == TRIALS, "each trial was made once"


@pytest.mark.slow
def test_all_killed_and_then_interrupted_the_search_goes_on(alone, tmp_path):
    slow, where = slow_file(tmp_path)
    words = ("--workers", "2", "--import", str(slow))
    process = start(alone / "t.csv", tmp_path / "study", *words)
    workers = at_step_5(where, process, count=2)  # all, so that none is left to leave its number later
    process.kill()
    process.communicate()
    wait_until_gone(workers)  # without the command that started them, they end by themselves
    assert not (tmp_path / "study" / "tune.json").exists()
    for path in where.iterdir():
        path.unlink()

    process = start(alone / "t.csv", tmp_path / "study", *words, "--resume")
    workers = at_step_5(where, process)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=300)
    assert process.returncode == 130, (out, said)
    assert said.splitlines()[-1].endswith(f"of {TRIALS} trials are finished; the same command with --resume goes on")
    assert "Traceback" not in said and not any(map(_alive, workers))

    given = {"trials": TRIALS, "space": Space.of(SPACE), "workers": 1, "resume": True, "quiet": True}
    run(alone / "t.csv", tmp_path / "study", small(), **given)
    assert trials_of(tmp_path / "study") == trials_of(alone / "study")
