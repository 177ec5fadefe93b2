"""The runs of a comparison: the same rows and parameters for all, kills and failures that stop nothing, what is refused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

import numpy as np

from tests.comparison import BASE, GIVEN, STACKS, Here, prepared
from tests.lab import settings, write_table, write_text
from tokmix.cli.main import main
from tokmix.data.batches.rows import RowBatches
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.runs import pool
from tokmix.study.compare import plan, run
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(pool, "Pool", Here)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("compare"))


# --- the same for all --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "text", "nothing held out"])
def test_fractions_are_nested_and_what_is_held_out_stays(kind, data, tmp_path):
    files, more = TokenFiles(data), {"train.holdout": 0.0} if kind == "nothing held out" else {}
    if kind == "text":
        prepare(write_text(tmp_path / "texts", 150), tmp_path / "text", vocab=300, task="lm")
        files, more = TokenFiles(tmp_path / "text"), {"model.stack": "hsm"}
    works = [TrainingTask(files, settings(**{"train.fraction": share}, **more)) for share in (0.05, 0.1, 0.25, 0.5, 1.0)]
    rows = [np.arange(len(files["train"])) if work.kept is None else work.kept for work in works]
    for smaller, larger in itertools.pairwise(rows):
        assert set(smaller) < set(larger)
    assert [len(part) for part in rows] == [max(1, round(share * len(rows[-1]))) for share in (0.05, 0.1, 0.25, 0.5, 1.0)]
    for work, part in zip(works, rows, strict=True):
        assert (work.held is None) == (kind == "nothing held out")
        assert work.held is None or np.array_equal(work.held, works[0].held)
        assert work.held is None or work.held_split == "valid" or not set(part) & set(work.held)
        same = {"train.fraction": work.train.fraction, "train.holdout": work.train.holdout}
        other = TrainingTask(files, settings(**same, **{"train.seed": 7, "model.stack": "hsm"}))
        assert np.array_equal(
            np.arange(len(part)) if other.kept is None else other.kept, np.arange(len(part)) if work.kept is None else part
        )
    # By what stands in a row and not by where it stands: the choice spreads over the file.
    assert rows[2].max() > 0.7 * len(files["train"]) and rows[2].min() < 0.3 * len(files["train"])


def test_stacks_read_the_same_batches_and_seeds_others(data):
    made, _ = plan.entries(TokenFiles(data), STACKS, BASE, "largest")
    read = {}
    for one in plan.runs(made, [0, 1], [0.5], bag=False):
        batches = TrainingTask(TokenFiles(data), one.settings).train_batches(World())
        assert isinstance(batches, RowBatches)
        read[one.entry, one.seed] = [batches.global_rows(1, step).tolist() for step in range(batches.steps(1))]
    assert read[STACKS[0], 0] == read[STACKS[1], 0] and read[STACKS[0], 1] == read[STACKS[1], 1] != read[STACKS[0], 0]


def test_parameters_are_equal_or_it_is_said(data):
    files = TokenFiles(data)
    for match in ("largest", "first"):
        made, notes = plan.entries(files, ["hypermixing*2", "attention(heads=2)*2", "hsm"], BASE, match)
        counts = [entry.parameters for entry in made]
        assert max(counts) - min(counts) <= 0.01 * max(counts) and notes == []
        for entry in made:
            work = TrainingTask(files, entry.settings)
            assert work.build(torch.device("cpu")).parameter_count() == entry.parameters
    assert plan.entries(files, ["attention", "hypermixing*3"], BASE, "first")[0][0].settings.model.feed_forward is None
    made, notes = plan.entries(files, ["attention", "hypermixing*3"], BASE, None)
    assert made[0].settings.model.feed_forward is None and len(notes) == 1 and "attention has" in notes[0] and "%" in notes[0]
    bare = Settings.of(None, GIVEN | {"model.feed_forward": 0})
    made, notes = plan.entries(files, ["attention", "hypermixing*3"], bare, "largest")
    assert "nothing to resize" in notes[0] and "attention has" in notes[1]
    made, notes = plan.entries(files, ["attention", "hypermixing"], bare, "largest")
    assert abs(made[0].parameters - made[1].parameters) <= 0.01 * made[0].parameters and notes == []
    with pytest.raises(ValueError, match=r"stack 'atention': .*did you mean 'attention'"):
        plan.entries(files, ["hsm", "atention"], BASE, "largest")


def test_a_comparison_killed_while_it_prepares_is_known_as_one(tmp_path, monkeypatch):
    write_table(tmp_path / "t.csv", 60)
    seen = []

    def killed(data, folder, given):
        seen.append((folder / run.ASKED).is_file())
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "prepared_in", killed)
    for _ in range(2):  # the second goes on with what the first left
        with pytest.raises(KeyboardInterrupt):
            run.open_data(tmp_path / "t.csv", tmp_path / "out", BASE)
    assert seen == [True, True]


# --- what goes wrong ---------------------------------------------------------------------------------------------------------

BROKEN = """
import os, signal, time, torch
from tokmix import Cost, RowMixer, register

class Plain(RowMixer):
    modes = frozenset({"bidirectional", "padded", "packed"})
    order = "T"
    def __init__(self, dim, *, causal, max_len, layer=0):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.gain = torch.nn.Parameter(torch.ones(dim))
    def cost(self, length):
        return Cost(0, length * self.dim)

@register("diverges")
class Diverges(Plain):
    def mix(self, x, rows):
        return x * self.gain * (float("nan") if self.training else 1.0)

@register("raises")
class Raises(Plain):
    def mix(self, x, rows):
        raise RuntimeError("out of\\nluck")

@register("dies")
class Dies(Plain):
    def mix(self, x, rows):
        os.kill(os.getpid(), signal.SIGKILL)

@register("slow")
class Slow(Plain):
    def mix(self, x, rows):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return x * self.gain
"""


@pytest.fixture
def broken(tmp_path, clean_registry) -> Iterator[Path]:
    """A file of bad mixers; whatever was imported of it is forgotten again."""
    (tmp_path / "broken.py").write_text(BROKEN)
    yield tmp_path / "broken.py"
    sys.modules.pop("tokmix_user_broken", None)


def command(*given, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tokmix", "compare", *map(str, given)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def options(given=GIVEN):
    return [part for name, value in given.items() for part in (f"--{name}", value)]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_reported_and_stops_nothing(data, tmp_path, broken):
    """In processes of their own, with a run left to do for the worker that dies. The task has no bag of words."""
    given = ["--data", data, "--out", tmp_path / "out", "--seeds", 1, "--no-match", "--import", broken, "--train.task", "mlm", *options()]
    with command("dies", "slow", *given, "--jobs", 1) as process:
        printed = process.communicate()[0]
    assert process.returncode == 1, printed  # a run failed; the others are there
    assert "failed: dies, 100 %, seed 0: its process was killed by signal 9" in printed
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [(one["entry"], one["state"]) for one in found["runs"]] == [
        ("dies", "failed"), ("slow", "finished"), ("bag of words", "not available")
    ]  # fmt: skip
    assert found["metric"] == "loss" and not found["higher_is_better"] and found["table"][0]["mean"] is None


def test_what_diverged_stays_so_and_another_failure_is_tried_again(data, tmp_path, here, broken):
    made, told = Settings.of(None, GIVEN | {"train.task": "mlm"}), []
    asked = {"seeds": 2, "match": None, "resume": True, "imports": [broken], "say": told.append}
    for _ in range(2):
        found = run.compare(["diverges", "raises", "hsm"], data, tmp_path / "out", made, **asked)
    tried = [line.split(", ")[0].split("] ")[1] for line in told if line.startswith("[")]
    assert tried == ["diverges"] * 2 + ["raises"] * 2 + ["hsm"] * 2 + ["raises"] * 2
    errors = {one["entry"]: one["error"] for one in found["runs"] if one["seed"] == 1}
    assert "training diverged" in errors["diverges"] and errors["raises"] == "RuntimeError: out of luck" and errors["hsm"] is None
    assert f"failed: diverges, 100 %, seed 1: {errors['diverges']}" in told
    assert [row["n"] for row in found["table"]] == [0, 0, 2, 0] and found["tests"] == []
    with pytest.raises(ValueError, match="every run failed.*training diverged"):
        run.compare(["diverges"], data, tmp_path / "out", made, **asked)


@pytest.mark.slow
def test_killed_with_everything_and_resumed_the_scores_are_the_same(data, tmp_path, here, broken):
    made = GIVEN | {"train.save_steps": 2, "train.epochs": 4, "train.task": "mlm"}
    given = ["--data", data, "--out", tmp_path / "out", "--seeds", 2, "--import", broken, *options(made)]
    with command("slow", *given, "--jobs", 2, SLOW="0.1") as process:
        assert wait_for(lambda: len(list((tmp_path / "out").glob("runs/slow-1-seed*/checkpoints/step-*"))) >= 3)
        process.send_signal(signal.SIGKILL)
    assert not list((tmp_path / "out").glob("runs/slow*/result.json")), "it was over before the kill: the test would show nothing"
    asked = {"seeds": 2, "imports": [broken], "say": lambda line: None}
    resumed = run.compare(["slow"], data, tmp_path / "out", Settings.of(None, made), resume=True, **asked)  # waits for the workers to go
    straight = run.compare(["slow"], data, tmp_path / "straight", Settings.of(None, made), **asked)
    for one, other in zip(resumed["runs"][:2], straight["runs"][:2], strict=True):
        assert one["score"] == other["score"] and one["seed"] == other["seed"]
        parts = [(tmp_path / part / one["folder"] / "model" / "model.safetensors").read_bytes() for part in ("out", "straight")]
        assert parts[0] == parts[1]


def wait_for(there, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if there():
            return True
        time.sleep(0.01)
    return False


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 8)
    assert pool.share_out("cpu", None, 20) == (["cpu"] * 8, 1)
    assert pool.share_out("cpu", None, 3) == (["cpu"] * 3, 2)
    assert pool.share_out("cpu", 2, 20) == (["cpu"] * 2, 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pool.share_out(None, None, 20) == ([f"cuda:{i % 2}" for i in range(8)], 1)
    assert pool.share_out("cuda:1", None, 20) == (["cuda:1"] * 4, 2)


# --- the command line --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["hsm", "hsm"], "named twice"),
        (["attention*4", "hsm*2", "hsm, hsm"], "stack 'hsm, hsm' is named twice: 'hsm*2' has the same layers"),
        (["bag of words"], "always a row"),
        (["hsm", "--stack", "attention"], "--model.stack is what is compared"),
        (["hsm", "--train.fraction", "0.5"], "give --fractions"),
        (["hsm", "--fractions", "0,1"], "above 0 and at most 1"),
        (["hsm", "--fractions", "a"], "numbers separated by commas"),
        (["hsm", "--n", "500"], "--n 500 is for --data shapes"),
        (["hsm", "--seeds", "0"], "seeds=0"),
        (["hsm", "--jobs", "0"], "jobs=0"),
        (["atention"], "did you mean 'attention'"),
        (["fnet", "hypermixing(hiden=3)"], "did you mean 'hidden'"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(given, told, data, tmp_path, capsys):
    assert main(["compare", *given, "--data", str(data), "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert told in shown and shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", ["compare hsm --data DATA --out OUT", "compare hsm --data shapes --out OUT", "eval OUT DATA", "predict OUT x"]
)
def test_under_torchrun_it_is_refused(words, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([{"DATA": str(data), "OUT": str(tmp_path / "out")}.get(word, word) for word in words.split()]) == 1
    assert capsys.readouterr().err.endswith(": start it without torchrun\n") and not (tmp_path / "out").exists()


def test_what_is_compared_is_not_taken_from_a_config(here, data, tmp_path, capsys):
    (tmp_path / "c.json").write_text(json.dumps({"train": {"fraction": 0.5}}))
    given = ["--data", str(data), "--seeds", "1", "--train.steps", "1", "--train.pretrain", "0", "--jobs", "1"]
    assert main(["compare", "hsm", *given, "--out", str(tmp_path / "out"), "--config", str(tmp_path / "c.json")]) == 1
    assert "train.fraction=0.5 is what is compared: give fractions (--fractions)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["compare", "hsm", *given, "--out", str(tmp_path / "out"), "--config", "tiny"]) == 0
    assert "model.stack='hypermixing(hidden=32)*2' of the settings is not used" in capsys.readouterr().out


@pytest.mark.parametrize("stack", ["atention", "hypermlp"], ids=["no mixer", "one that does not fit the task"])
def test_a_table_is_not_prepared_in_vain(stack, tmp_path, capsys):
    write_table(tmp_path / "t.csv", 60)
    assert main(["compare", stack, "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("tokmix compare: ")
    assert not (tmp_path / "out").exists(), "a second try would run into it"
