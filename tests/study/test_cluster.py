"""Studies on a cluster: two real workers joined over loopback, one of them killed; the results are those of one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("optuna")
pytest.importorskip("distributed")

from reproduce import results
from reproduce import run as papers
from tests.lab import write_table
from tests.tuning import ROOT, at_step_5, slow_file, start, trials_of
from tokmix.cli.main import main
from tokmix.runs import pool


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def cluster(tmp_path) -> Iterator[str]:
    """A scheduler and two workers, processes of their own; what they start ends with them."""
    address, started = f"tcp://127.0.0.1:{free_port()}", []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = {
        "scheduler": ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]],
        "worker": [address, "--nthreads", "1", "--no-nanny"],
    }
    for role in ("scheduler", "worker", "worker"):
        command = [sys.executable, "-m", "distributed.cli.dask_" + role, *words[role], "--no-dashboard"]
        with open(tmp_path / f"{role}-{len(started)}.log", "w") as log:
            started.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=env))
    try:
        from distributed import Client

        with Client(address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address
    finally:
        for process in reversed(started):
            process.kill()  # asked to end, a worker waits for its task
        for process in started:
            process.wait(30)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_search_on_two_workers_of_which_one_is_killed_gives_the_trials_of_one_machine(tmp_path, cluster):
    data = write_table(tmp_path / "t.csv", 120)
    slow, where = slow_file(tmp_path)
    with start(data, tmp_path / "here" / "study", "--workers", "1") as local:
        told = local.communicate(timeout=300)
    assert local.returncode == 0, told
    with start(data, tmp_path / "there" / "study", "--on", cluster, "--import", str(slow)) as process:
        trial = at_step_5(where, process)[0]  # checkpoints are made every two steps
        worker = parent_of(trial)
        assert "dask_worker" in Path(f"/proc/{worker}/cmdline").read_text(), "the trial is not run by a worker of the cluster"
        for killed in (worker, trial):  # as where the host is lost: nothing is saved on the way
            with suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)
        told = process.communicate(timeout=300)
    assert process.returncode == 0 and "2 workers on tcp://127.0.0.1" in told[0], told
    assert trials_of(tmp_path / "there" / "study") == trials_of(tmp_path / "here" / "study")


@pytest.mark.slow
def test_a_comparison_on_a_cluster_is_that_of_one_machine(tmp_path, cluster, capsys):
    data = write_table(tmp_path / "t.csv", 120)
    words = ["compare", "hypermixing(hidden=16)", "identity", "--data", str(data), "--seeds", "2", "--model.dim", "16"]
    words += ["--prepare.vocab", "200", "--epochs", "1", "--train.threads", "1"]
    assert main([*words, "--out", str(tmp_path / "there"), "--on", cluster]) == 0
    assert "2 workers on" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "here"), "--jobs", "1"]) == 0
    here, there = (json.loads((tmp_path / name / "compare.json").read_text())["runs"] for name in ("here", "there"))
    assert [(one["entry"], one["seed"], one["state"], one["score"]) for one in here] == [
        (one["entry"], one["seed"], one["state"], one["score"]) for one in there
    ]
    assert len(here) >= 4 and all(one["state"] == "finished" for one in here[:4])


def worker_in_a_job() -> tuple[int, int]:
    """(a worker of the cluster, its process for jobs), once that one has worked for a while."""
    for _ in range(1200):
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                mine = "dask_worker" in Path(f"/proc/{fields[1]}/cmdline").read_text() and parent_of(int(fields[1])) == os.getpid()
                if mine and "reproduce.worker" in (folder / "cmdline").read_text() and seconds > 1:
                    return int(fields[1]), int(folder.name)
        time.sleep(0.1)
    raise AssertionError("no worker has begun a job")


@pytest.mark.slow
def test_paper_runs_on_two_workers_of_which_one_is_killed_give_the_outcomes_of_one_machine(tmp_path, cluster, monkeypatch, capsys):
    monkeypatch.setattr(papers, "THREADS", 1)
    monkeypatch.setattr(pool, "cores", lambda: 1)  # the same sums here and there
    killed, done = [], []
    jobs = results.jobs_folder(tmp_path / "there", "recall")

    def kill() -> None:
        killed.extend(worker_in_a_job())
        done.extend(jobs.glob("*.json"))
        for process in killed:
            os.kill(process, signal.SIGKILL)

    words = ["papers", "hypermlp", "recall", "--quick", "--device", "cpu", "--only", "width16-16-cheap", "--out"]
    killer = threading.Thread(target=kill)
    killer.start()
    assert main([*words, str(tmp_path / "there"), "--on", cluster]) == 0
    killer.join()
    assert len(killed) == 2 and not done, "the kill came too late to show anything"
    assert "2 workers on" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "here"), "--workers", "1"]) == 0
    here, there = (results.outcomes(results.load(tmp_path / name / "recall.json")) for name in ("here", "there"))
    assert set(here) == {"width16-16-cheap"} and without_clock(here) == without_clock(there)


def without_clock(outcomes: dict) -> dict:
    return {key: {name: value for name, value in one.items() if name != "seconds"} for key, one in outcomes.items()}


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        ("tune", [], "no Dask scheduler answers there"),
        ("compare", [], "no Dask scheduler answers there"),
        ("tune", ["--workers", "2"], "--workers is for workers of tune's own"),
        ("tune", ["--storage", "postgresql://u@h/d"], "--storage is for workers of tune's own"),
        ("compare", ["--jobs", "2"], "--jobs 2 is for this machine"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(command, more, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tokmix.runs.cluster.PATIENCE", 1)
    data, began = write_table(tmp_path / "t.csv", 60), time.monotonic()
    first = ["tune", str(data)] if command == "tune" else ["compare", "identity", "--data", str(data)]
    address = f"tcp://127.0.0.1:{free_port()}"
    assert main([*first, "--out", str(tmp_path / "out"), "--model.dim", "16", "--prepare.vocab", "200", "--on", address, *more]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tokmix ")]
    assert len(said) == 1 and told in said[0] and address in said[0]
    assert time.monotonic() - began < 60
