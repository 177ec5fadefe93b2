"""A comparison: the same rows and parameters for all, a table that follows from the runs, kills and failures that stop nothing."""

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

from tests.lab import SMALL, settings, write_scores, write_table, write_text
from tokmix.cli import main
from tokmix.compare import outcomes, plan, pool, run, summary, worker
from tokmix.data.batches import RowBatches
from tokmix.data.prepare import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.lab import baseline, statistics
from tokmix.lab.settings import Settings
from tokmix.lab.task import Work
from tokmix.lab.world import World

ROOT = Path(__file__).parent.parent
STACKS = ["hypermixing(hidden=16)*2", "attention(heads=2)"]
GIVEN = {"model.dim": 16, "train.epochs": 2, "train.pretrain": 0, "train.rows": 16, "train.evaluations": 2, "train.device": "cpu"}


class Here:
    """A pool without processes."""

    def __init__(self, devices, threads, log):
        self.devices = devices

    def run(self, tasks, report, more=None):
        for task in tasks:
            report(task, worker.do(json.loads(json.dumps({**task, "device": self.devices[0]}))))


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(pool, "Pool", Here)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    prepare(write_table(folder / "t.csv", 200), folder / "data", vocab=200)
    return folder / "data"


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Two stacks, two seeds, two fractions, and the bag of words."""
    out, told = tmp_path_factory.mktemp("whole") / "out", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "Pool", Here)
        found = run.compare(STACKS, data, out, Settings.of(None, GIVEN), seeds=2, fractions=(1, 0.3), say=told.append)
    return found, out, told


def scores(found, entry, fraction):
    return [one["score"] for one in found["runs"] if (one["entry"], one["fraction"]) == (entry, fraction)]


def test_the_table_follows_from_the_runs(whole):
    found, out, told = whole
    assert json.loads((out / "compare.json").read_text()) == json.loads(json.dumps(found))
    assert (found["format"], found["version"], found["metric"], found["higher_is_better"]) == ("tokmix-compare", 1, "accuracy", True)
    assert found["seeds"] == [0, 1] and found["fractions"] == [0.3, 1]
    assert [entry["name"] for entry in found["entries"]] == [*STACKS, "bag of words"]
    assert len(found["runs"]) == 2 * (2 * 2 + 1) and all(one["state"] == "finished" for one in found["runs"])
    for row in found["table"]:
        values = scores(found, row["entry"], row["fraction"])
        assert row["n"] == len(values) == (1 if row["entry"] == "bag of words" else 2)
        assert row["mean"] == pytest.approx(np.mean(values))
        assert row["deviation"] == (pytest.approx(np.std(values, ddof=1)) if len(values) > 1 else None)
        shown = next(line for line in told if line.startswith(row["entry"]) and "parameters" not in line)
        assert f"{row['mean']:.4f}" in shown
    for name in ("compare.json", "table.txt", "cost.png", "curves.png"):
        assert (out / name).stat().st_size > 0
    assert {"command", "tokmix", "machine", "versions"} <= found.keys()


def test_scores_and_costs_are_those_of_the_runs(whole):
    found, out, _ = whole
    for one in found["runs"]:
        sums = outcomes.load(out / one["folder"])
        assert outcomes.figure(sums.sum(0)) == pytest.approx(one["score"]), "the examples do not add up to the score"
        if one["entry"] != "bag of words":
            record = json.loads((out / one["folder"] / "model" / "training.json").read_text())
            assert record["figures"]["accuracy"] == one["score"] and record["settings"]["train"]["seed"] == one["seed"]
            assert one["cost"]["flops_training"] == record["cost"]["flops_training"]
            assert not (out / one["folder"] / "checkpoints").exists()
    for row in found["table"]:
        costs = [one["cost"] for one in found["runs"] if (one["entry"], one["fraction"]) == (row["entry"], row["fraction"])]
        if row["entry"] == "bag of words":
            assert row["cost"]["flops"] is None and row["cost"]["seconds"] > 0
        else:
            assert row["cost"]["flops"] == pytest.approx(np.mean([cost["flops_training"] * cost["examples"] for cost in costs]))
    small, full = (next(r["cost"] for r in found["runs"] if r["entry"] == STACKS[0] and r["fraction"] == f) for f in (0.3, 1))
    assert small["distinct_examples"] == pytest.approx(0.3 * full["distinct_examples"], abs=1)


def test_every_pair_is_tested_and_corrected(whole):
    found, out, _ = whole
    pairs = list(itertools.combinations([*STACKS, "bag of words"], 2))
    assert [(test["a"], test["b"], test["fraction"]) for test in found["tests"]] == [(*pair, f) for f in (0.3, 1) for pair in pairs]
    for test in found["tests"]:
        a, b = ((scores(found, test[side], test["fraction"]) * 2)[:2] for side in "ab")
        assert test["difference"] == pytest.approx(np.mean(a) - np.mean(b))
        assert test["t_p"] == statistics.paired_t(a, b)
        folders = {one["folder"] for one in found["runs"]}
        assert test["n_seeds"] == 2 and test["n_examples"] == len(outcomes.load(out / min(folders)))
    for kind in ("t_p", "bootstrap_p", "bootstrap_both_p"):
        assert [test[f"{kind}_holm"] for test in found["tests"]] == statistics.holm([test[kind] for test in found["tests"]])
        assert all(test[kind] is None or 0 < test[kind] <= 1 for test in found["tests"])


def test_the_bootstrap_is_of_these_examples(whole):
    """Once more with a plain loop over draws."""
    found, out, _ = whole
    test = next(test for test in found["tests"] if test["b"] == "bag of words" and test["fraction"] == 1)
    places = {(one["entry"], one["seed"]): out / one["folder"] for one in found["runs"] if one["fraction"] == 1}
    right = [outcomes.load(places[test["a"], seed])[:, 0] for seed in (0, 1)]
    differences = np.mean(right, 0) - outcomes.load(places["bag of words", None])[:, 0]  # of each example
    chance, far = np.random.default_rng(9), 0
    for _ in range(2000):
        drawn = differences[chance.integers(len(differences), size=len(differences))].mean()
        far += abs(drawn - differences.mean()) >= abs(differences.mean())
    assert test["bootstrap_p"] == pytest.approx(far / 2000, abs=0.05)


def test_a_second_call_finds_everything_done(whole, data, monkeypatch):
    found, out, _ = whole
    monkeypatch.setattr(pool, "Pool", lambda *given: pytest.fail("something was run again"))
    again = run.compare(STACKS, data, out, Settings.of(None, GIVEN), seeds=2, fractions=(0.3, 1), resume=True, say=lambda line: None)
    for part in ("runs", "table", "tests", "front"):
        assert again[part] == found[part]
    fewer = run.compare(STACKS[:1], data, out, Settings.of(None, GIVEN), seeds=1, match=None, resume=True, say=lambda line: None)
    assert [one["score"] for one in fewer["runs"]] == [scores(found, STACKS[0], 1)[0], *scores(found, "bag of words", 1)]
    run.compare(STACKS, data, out, Settings.of(None, GIVEN), seeds=2, fractions=(0.3, 1), resume=True, say=lambda line: None)


def test_other_settings_are_other_runs_and_other_data_is_refused(whole, data, tmp_path):
    _, out, _ = whole
    keys = [
        {
            one.key
            for one in plan.runs(plan.entries(TokenFiles(data), STACKS, Settings.of(None, GIVEN | more), "largest")[0], [0], [1.0], True)
        }
        for more in ({}, {"train.lr": 0.5}, {"train.log_steps": 3})
    ]
    assert keys[0] == keys[2], "how often a run logs makes no other run of it"
    assert keys[0] & keys[1] == {key for key in keys[0] if key.startswith("bag-of-words")}
    prepare(write_table(tmp_path / "o.csv", 60, seed=5), tmp_path / "other", vocab=200)
    with pytest.raises(ValueError, match="other data"):
        run.compare(STACKS, tmp_path / "other", out, Settings.of(None, GIVEN), resume=True)
    with pytest.raises(ValueError, match="exists already"):
        run.compare(STACKS, data, out, Settings.of(None, GIVEN))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="not a comparison"):
        run.compare(STACKS, data, tmp_path / "mine", Settings.of(None, GIVEN), resume=True)


# --- the same rows for all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "text", "nothing held out"])
def test_fractions_are_nested_and_what_is_held_out_stays(kind, data, tmp_path):
    files, more = TokenFiles(data), {"train.holdout": 0.0} if kind == "nothing held out" else {}
    if kind == "text":
        prepare(write_text(tmp_path / "texts", 150), tmp_path / "text", vocab=300, task="lm")
        files, more = TokenFiles(tmp_path / "text"), {"model.stack": "hsm"}
    works = [Work(files, settings(**{"train.fraction": share}, **more)) for share in (0.05, 0.1, 0.25, 0.5, 1.0)]
    rows = [np.arange(len(files["train"])) if work.kept is None else work.kept for work in works]
    for smaller, larger in itertools.pairwise(rows):
        assert set(smaller) < set(larger)
    assert [len(part) for part in rows] == [max(1, round(share * len(rows[-1]))) for share in (0.05, 0.1, 0.25, 0.5, 1.0)]
    for work, part in zip(works, rows, strict=True):
        assert (work.held is None) == (kind == "nothing held out")
        assert work.held is None or (np.array_equal(work.held, works[0].held) and not set(part) & set(work.held))
        other = Work(
            files,
            settings(
                **{"train.fraction": work.train.fraction, "train.seed": 7, "model.stack": "hsm"}, **{"train.holdout": work.train.holdout}
            ),
        )
        assert np.array_equal(
            np.arange(len(part)) if other.kept is None else other.kept, np.arange(len(part)) if work.kept is None else part
        )
    # By what stands in a row and not by where it stands: the choice spreads over the file.
    assert rows[2].max() > 0.7 * len(files["train"]) and rows[2].min() < 0.3 * len(files["train"])


def test_stacks_read_the_same_batches_and_seeds_others(data):
    made, _ = plan.entries(TokenFiles(data), STACKS, Settings.of(None, GIVEN), "largest")
    read = {}
    for one in plan.runs(made, [0, 1], [0.5], bag=False):
        batches = Work(TokenFiles(data), one.settings).train_batches(World())
        assert isinstance(batches, RowBatches)
        read[one.entry, one.seed] = [batches.global_rows(1, step).tolist() for step in range(batches.steps(1))]
    assert read[STACKS[0], 0] == read[STACKS[1], 0] and read[STACKS[0], 1] == read[STACKS[1], 1] != read[STACKS[0], 0]


def test_parameters_are_equal_or_it_is_said(data):
    files, base = TokenFiles(data), Settings.of(None, GIVEN)
    for match in ("largest", "first"):
        made, notes = plan.entries(files, ["hypermixing*2", "attention(heads=2)*2", "hsm"], base, match)
        counts = [entry.parameters for entry in made]
        assert max(counts) - min(counts) <= 0.01 * max(counts) and notes == []
        for entry in made:
            work = Work(files, entry.settings)
            assert work.build(torch.device("cpu")).parameter_count() == entry.parameters
    assert plan.entries(files, ["attention", "hypermixing*3"], base, "first")[0][0].settings.model.feed_forward is None
    made, notes = plan.entries(files, ["attention", "hypermixing*3"], base, None)
    assert made[0].settings.model.feed_forward is None and len(notes) == 1 and "attention has" in notes[0] and "%" in notes[0]
    bare = Settings.of(None, GIVEN | {"model.feed_forward": 0})
    made, notes = plan.entries(files, ["attention", "hypermixing*3"], bare, "largest")
    assert "nothing to resize" in notes[0] and "attention has" in notes[1]
    made, notes = plan.entries(files, ["attention", "hypermixing"], bare, "largest")
    assert abs(made[0].parameters - made[1].parameters) <= 0.01 * made[0].parameters and notes == []
    with pytest.raises(ValueError, match=r"stack 'atention': .*did you mean 'attention'"):
        plan.entries(files, ["hsm", "atention"], base, "largest")


# --- what goes wrong ---------------------------------------------------------------------------------------------------

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


def test_a_worker_that_is_killed_is_reported_and_stops_nothing(data, tmp_path, broken):
    """In processes of their own, with a run left to do for the worker that dies. The task has no bag of words."""
    given = ["--data", data, "--out", tmp_path / "out", "--seeds", 1, "--no-match", "--import", broken, "--train.task", "mlm", *options()]
    with command("dies", "slow", *given, "--jobs", 1) as process:
        printed = process.communicate()[0]
    assert process.returncode == 0, printed
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


def test_tests_take_the_seeds_that_both_have():
    def made(entry, seed, score):
        sums = np.stack([np.array([1.0, 0, 1, score]), np.ones(4)], 1)
        return summary.Result(entry, 1.0, seed, score=score, sums=lambda: sums)

    results = [made("a", seed, score) for seed, score in enumerate((0.5, 0.75, 1.0))] + [made("b", 0, 0.25), made("b", 2, 0.5)]
    results.append(summary.Result("b", 1.0, 1, "failed", error="lost"))
    facts = {"higher_is_better": True}
    found = summary.summarise([{"name": "a"}, {"name": "b"}], results, [0, 1, 2], [1.0], facts)
    (test,) = found["tests"]
    assert (
        test["n_seeds"] == 2 and test["difference"] == pytest.approx(0.375) and test["t_p"] == statistics.paired_t([0.5, 1.0], [0.25, 0.5])
    )
    assert [row["n"] for row in found["table"]] == [3, 2] and [row["failed"] for row in found["table"]] == [0, 1]


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


# --- the bag of words --------------------------------------------------------------------------------------------------


def test_the_bag_is_fitted_on_the_rows_of_the_fraction(whole, data, monkeypatch):
    found, _, _ = whole
    seen = []
    monkeypatch.setattr(baseline, "predictions", lambda files, split, rows: seen.append(rows) or (np.zeros(len(files[split])), 10))
    files = TokenFiles(data)
    for one in plan.runs(plan.entries(files, STACKS, Settings.of(None, GIVEN), None)[0], [0], [0.3, 1.0], bag=True):
        if one.seed is None:
            folder = data.parent / f"bag-{one.fraction}"
            worker.do(
                {
                    "kind": "bag",
                    "data": str(data),
                    "out": str(folder),
                    "settings": plan.flat(one.settings),
                    "split": "valid",
                    "shared": True,
                }
            )
    full, small = seen
    assert np.array_equal(small, Work(files, settings(train__fraction=0.3)).kept) and np.array_equal(full, Work(files, settings()).kept)
    bag = [one["cost"]["examples"] for one in found["runs"] if one["entry"] == "bag of words"]
    assert bag == [len(full), len(small)]


@pytest.mark.parametrize("why", ["no scikit-learn", "regress"])
def test_where_there_is_no_bag_its_row_says_so(why, data, tmp_path, here, monkeypatch):
    source, told = data, []
    if why == "regress":
        prepare(write_scores(tmp_path / "s.tsv", 120), tmp_path / "scores", vocab=200, max_len=32)
        source = tmp_path / "scores"
    else:
        monkeypatch.setattr(baseline, "available", lambda: False)
    made = Settings.of(None, GIVEN | {"train.epochs": 1})
    found = run.compare(["hsm"], source, tmp_path / "out", made, seeds=1, fractions=(0.5, 1), say=told.append)
    rows = [row for row in found["table"] if row["entry"] == "bag of words"]
    assert len(rows) == 2 and all(row["mean"] is None and row["note"].startswith("not available") for row in rows)
    assert any(line.startswith("bag of words") and "not available" in line for line in told)
    assert found["metric"] == ("pearson" if why == "regress" else "accuracy")


# --- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_the_figure_of_all_examples_is_the_figure_of_the_task(task, data, tmp_path):
    source = data
    if task == "regress":
        prepare(write_scores(tmp_path / "s.tsv", 120), tmp_path / "data", vocab=200, max_len=32)
        source = tmp_path / "data"
    elif task == "lm":
        prepare(write_text(tmp_path / "texts", 80), tmp_path / "data", vocab=300, task="lm")
        source = tmp_path / "data"
    given = SMALL | {"train.task": task, "model.stack": "hsm", "model.length": 16, "train.tokens": 200}
    work = Work(TokenFiles(source), Settings.of(None, given))
    model, split = work.build(torch.device("cpu")), "valid"
    size = work.files.card.split(split).bytes if task == "lm" else None
    figures = work.evaluate(model, work.batches(split, World()), World(), size)
    sums = outcomes.measure(work, model, split, World())
    name = {"classify": "accuracy", "regress": "pearson", "lm": "bits_per_byte", "mlm": "loss"}[task]
    assert outcomes.figure(sums.sum(0)) == pytest.approx(figures[name], rel=1e-5)
    assert len(sums) > 5
    if task in ("classify", "regress"):
        assert len(sums) == len(work.files[split])


def test_a_drawn_correlation_of_one_example_is_none():
    sums = outcomes.of_scores(np.array([0.1, 0.7, 0.3]), np.array([1.0, 3.0, 1.5]))
    assert outcomes.figure(sums.sum(0)) == pytest.approx(np.corrcoef([0.1, 0.7, 0.3], [1.0, 3.0, 1.5])[0, 1])
    assert outcomes.figure(3 * sums[1]) == 0.0


def test_the_front_is_what_nothing_beats():
    chance = np.random.default_rng(0)
    for higher in (True, False):
        table = [
            {"entry": str(i), "fraction": 1.0, "mean": float(m), "cost": {"flops": float(c)}}
            for i, (m, c) in enumerate(chance.integers(0, 6, size=(12, 2)))
        ]
        table.append({"entry": "unknown", "fraction": 1.0, "mean": 9.0 if higher else -9.0, "cost": {"flops": None}})
        table.append({"entry": "failed", "fraction": 1.0, "mean": None, "cost": {"flops": 0.0}})
        sign = 1 if higher else -1

        def beaten(row, table=table[:12], sign=sign):
            return any(
                (sign * o["mean"] >= sign * row["mean"] and o["cost"]["flops"] <= row["cost"]["flops"])
                and (o["mean"], o["cost"]["flops"]) != (row["mean"], row["cost"]["flops"])
                for o in table
            )

        wanted = {(row["mean"], row["cost"]["flops"]) for row in table[:12] if not beaten(row)}
        found = summary.front(table, "flops", higher)
        assert {(point["mean"], point["flops"]) for point in found} == wanted and len(found) == len(wanted)


def test_energy_that_several_runs_drew_is_nobodys():
    cost = worker._shared({"energy_joules": 5.0, "energy_source": "nvml", "seconds": 1.0})
    assert cost["energy_joules"] is None and cost["energy_source"] == "not measured" and cost["seconds"] == 1.0


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(pool, "cores", lambda: 8)
    assert pool.share_out("cpu", None, 20) == (["cpu"] * 8, 1)
    assert pool.share_out("cpu", None, 3) == (["cpu"] * 3, 2)
    assert pool.share_out("cpu", 2, 20) == (["cpu"] * 2, 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pool.share_out(None, None, 20) == ([f"cuda:{i % 2}" for i in range(8)], 1)
    assert pool.share_out("cuda:1", None, 20) == (["cuda:1"] * 4, 2)


# --- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["hsm", "hsm"], "named twice"),
        (["bag of words"], "always a row"),
        (["hsm", "--stack", "attention"], "--model.stack is what is compared"),
        (["hsm", "--train.fraction", "0.5"], "give --fractions"),
        (["hsm", "--fractions", "0,1"], "above 0 and at most 1"),
        (["hsm", "--fractions", "a"], "numbers with commas"),
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


@pytest.mark.parametrize("stack", ["atention", "hypermlp"], ids=["no mixer", "one that does not fit the task"])
def test_a_table_is_not_prepared_in_vain(stack, tmp_path, capsys):
    write_table(tmp_path / "t.csv", 60)
    assert main(["compare", stack, "--data", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("tokmix compare: ")
    assert not (tmp_path / "out").exists(), "a second try would run into it"
