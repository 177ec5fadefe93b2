"""A search in a real PostgreSQL: a server of the tests' own, in a temporary folder, on loopback, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from tests import needs
from tests.lab import write_table
from tests.tuning import SEED, SPACE, TRIALS, at_step_5, slow_file, small, start, trials_of
from tokmix.study.tune.search import run
from tokmix.study.tune.space import Space
from tokmix.study.tune.store import Store
from tokmix.study.tune.trials import Trials

PASSWORD = "four words make sense".replace(" ", "-")


def as_whom() -> dict:
    """PostgreSQL refuses to be run by root."""
    if os.getuid() != 0:
        return {}
    names = {user.pw_name for user in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address, up to the name of the database."""
    binaries = needs.tool("postgres").parent
    needs.package("optuna")
    needs.package("psycopg")
    folder, who = Path(tempfile.mkdtemp(prefix="tokmix-postgres-")), as_whom()
    if who:
        os.chown(folder, who["user"], who["group"])
    given = {**who, "cwd": folder, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"], "TZ": "UTC"}}
    try:
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        made = subprocess.run(
            [binaries / "initdb", "-D", folder / "cluster", "-U", "anna", "-A", "scram-sha-256", "--pwfile", folder / "password"],
            capture_output=True, text=True, **given,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        told = [f"-c{name}" for name in ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", f"port={port}")]
        process = subprocess.Popen([binaries / "postgres", "-D", folder / "cluster", *told], stderr=subprocess.PIPE, text=True, **given)
        try:
            address = f"postgresql://anna:{PASSWORD}@127.0.0.1:{port}"
            wait_for(process, address)
            yield address
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: the folder goes too
            process.communicate(timeout=60)
    finally:
        shutil.rmtree(folder)


def wait_for(process: subprocess.Popen, address: str) -> None:
    psycopg = needs.package("psycopg")
    for _ in range(300):
        assert process.poll() is None, process.communicate()
        try:
            psycopg.connect(f"{address}/postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.fixture
def database(server, request) -> str:
    """An empty one."""
    name = f"d{abs(hash(request.node.name))}"
    with needs.package("psycopg").connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"{server}/{name}"


ASKED = {"settings": small().record(), "space": SPACE, "threads": 1, "source": "t.csv", "data": "0"}


def begin(folder: Path, database: str, count: int = 2, patience: int = 3) -> Trials:
    folder.mkdir(exist_ok=True)
    return Trials.begin(Store(folder, "study", database, patience), count, ASKED, higher=True)


def claim_within(trials: Trials, seconds: float):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        claim = trials.claim()
        if claim is not None:
            return claim
        time.sleep(0.2)
    return None


@pytest.mark.slow
def test_a_worker_of_another_machine_that_gives_no_sign_of_life_is_replaced(database, tmp_path):
    here, there = begin(tmp_path / "here", database), begin(tmp_path / "there", database)
    lost, other = there.claim(), here.claim()
    assert (lost.index, other.index) == (0, 1) and lost.parameters == Space.of(SPACE).draw(SEED, 0)
    there.sign_of_life(lost)
    assert here.claim() is None, "it has just given a sign"
    lost.lock.release()
    found = claim_within(here, 30)
    assert (found.index, found.parameters) == (0, lost.parameters)
    assert not there.finish(lost, 0.1, {}) and here.finish(found, 0.2, {"state": "finished"})
    assert here.running() == [1], "who holds its lock on this machine is alive, however long it is silent"
    assert [(trial.index, trial.score) for trial in there.finished()] == [(0, 0.2)]


@pytest.mark.slow
def test_two_machines_of_which_one_dies_give_the_trials_of_one(database, tmp_path):
    """Started at the same time on an empty database, each with a folder of its own."""
    write_table(tmp_path / "t.csv")
    words = ("--workers", "1", "--storage", database, "--study", "films", "--patience", "4")
    slow, where = slow_file(tmp_path)
    dies = start(tmp_path / "t.csv", tmp_path / "one", *words, "--import", str(slow))
    lives = start(tmp_path / "t.csv", tmp_path / "other", *words)
    at_step_5(where, dies)
    dies.kill()
    dies.communicate()
    _, said = lives.communicate(timeout=300)
    assert lives.returncode == 0, said
    given = {"trials": TRIALS, "space": Space.of(SPACE), "workers": 1, "quiet": True}
    run(tmp_path / "t.csv", tmp_path / "alone", small(), **given)
    assert trials_of(tmp_path / "other") == trials_of(tmp_path / "alone")
    assert PASSWORD not in (tmp_path / "other" / "tune.json").read_text()
    shared = {"storage": database, "study": "films", "patience": 4}
    run(tmp_path / "t.csv", tmp_path / "one", small(), resume=True, **shared, **given)
    assert trials_of(tmp_path / "one") == trials_of(tmp_path / "alone"), "the other machine knows them too"
    with pytest.raises(ValueError, match="study 'films' was begun with other settings: train.warmup=0.2, was 0.1"):
        run(tmp_path / "t.csv", tmp_path / "third", small(train__warmup=0.2), **shared, **given)


@pytest.mark.slow
def test_five_commands_make_the_tables_and_the_trials_once(database, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda i: begin(tmp_path / str(i), database, 3), range(5)))
    assert all(len(trials.attempts()) == 3 for trials in found)
