"""The table of a comparison: it follows from the runs and their examples, every pair is tested, and a second call finds it again."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

import numpy as np

from tests.comparison import BASE, GIVEN, STACKS, Here, prepared
from tests.lab import SMALL, settings, write_scores, write_table, write_text
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.runs import pool
from tokmix.show import plots
from tokmix.study import statistics
from tokmix.study.compare import draw, outcomes, plan, run, summary, worker
from tokmix.training import baseline
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(pool, "Pool", Here)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("compare"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Two stacks, two seeds, two fractions, and the bag of words."""
    out, told = tmp_path_factory.mktemp("whole") / "out", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "Pool", Here)
        found = run.compare(STACKS, data, out, BASE, seeds=2, fractions=(1, 0.3), say=told.append)
    return found, out, told


def scores(found, entry, fraction):
    return [one["score"] for one in found["runs"] if (one["entry"], one["fraction"]) == (entry, fraction)]


def regression(folder: Path) -> Path:
    """Data whose task is to tell a score."""
    prepare(write_scores(folder / "s.tsv", 120), folder / "scores", vocab=200, max_len=32)
    return folder / "scores"


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


@pytest.mark.parametrize("farthest", [1.0005, 1.1, 4.0, 30.0, 1e5])
def test_numbers_along_the_axis_of_costs_stand_apart_and_differ(farthest: float) -> None:
    page = draw.figure(11, 4.5)
    axes = page.add_subplot(1, 2, 1)
    axes.scatter([7.37e8, 7.37e8 * farthest], [0.1, 0.2])
    axes.set_xscale("log")
    plots.log_ticks(axes.xaxis)
    page.tight_layout()
    page.canvas.draw()
    low, high = axes.get_xlim()
    named = [label for label in axes.get_xticklabels(which="both") if low <= label.get_position()[0] <= high and label.get_text()]
    boxes = sorted((label.get_window_extent().x0, label.get_window_extent().x1) for label in named)
    assert len({label.get_text() for label in named}) == len(named) >= 2
    assert all(left[1] < right[0] for left, right in itertools.pairwise(boxes))


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


def test_a_second_call_finds_everything_done(whole, data, monkeypatch):
    found, out, _ = whole
    asked = {"resume": True, "say": lambda line: None}
    everything = lambda: run.compare(STACKS, data, out, BASE, seeds=2, fractions=(0.3, 1), **asked)
    monkeypatch.setattr(pool, "Pool", lambda *given: pytest.fail("something was run again"))
    again = everything()
    for part in ("runs", "table", "tests", "front"):
        assert again[part] == found[part]
    fewer = run.compare(STACKS[:1], data, out, BASE, seeds=1, match=None, **asked)
    assert [one["score"] for one in fewer["runs"]] == [scores(found, STACKS[0], 1)[0], *scores(found, "bag of words", 1)]
    everything()  # the folder is as it was for the other tests


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
        run.compare(STACKS, tmp_path / "other", out, BASE, resume=True)
    with pytest.raises(ValueError, match="exists already"):
        run.compare(STACKS, data, out, BASE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="not a comparison"):
        run.compare(STACKS, data, tmp_path / "mine", BASE, resume=True)


def test_other_data_of_the_same_name_is_refused(tmp_path):
    settings = Settings.of(None, GIVEN | {"prepare.vocab": 200})
    table = write_table(tmp_path / "t.csv", 60)
    run.open_data(table, tmp_path / "out", settings)
    run.open_data(table, tmp_path / "out", settings)
    write_table(table, 60, seed=5)
    with pytest.raises(ValueError, match=r"other data.*t\.csv is not what it was"):
        run.open_data(table, tmp_path / "out", settings)


# --- pairs -------------------------------------------------------------------------------------------------------------------


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


# --- the bag of words --------------------------------------------------------------------------------------------------------


def test_the_bag_is_fitted_on_the_rows_of_the_fraction(whole, data, monkeypatch):
    found, _, _ = whole
    seen = []
    monkeypatch.setattr(baseline, "predictions", lambda files, split, rows: seen.append(rows) or (np.zeros(len(files[split])), 10))
    files = TokenFiles(data)
    for one in plan.runs(plan.entries(files, STACKS, BASE, None)[0], [0], [0.3, 1.0], bag=True):
        if one.seed is None:
            folder = data.parent / f"bag-{one.fraction}"
            task = {"key": "bag", "kind": "bag", "data": str(data), "out": str(folder), "settings": plan.flat(one.settings)}
            worker.do({"device": "cpu", "runs": [{**task, "split": "valid", "shared": True}]})
    full, small = seen
    assert np.array_equal(small, TrainingTask(files, settings(train__fraction=0.3)).kept)
    assert TrainingTask(files, settings()).kept is None  # all of train: valid is held out to choose by
    bag = [one["cost"]["examples"] for one in found["runs"] if one["entry"] == "bag of words"]
    assert full is None and bag == [len(files["train"]), len(small)]


@pytest.mark.parametrize("why", ["no scikit-learn", "regress"])
def test_where_there_is_no_bag_its_row_says_so(why, data, tmp_path, here, monkeypatch):
    source, told = data, []
    if why == "regress":
        source = regression(tmp_path)
    else:
        monkeypatch.setattr(baseline, "available", lambda: False)
    made = Settings.of(None, GIVEN | {"train.epochs": 1})
    found = run.compare(["hsm"], source, tmp_path / "out", made, seeds=1, fractions=(0.5, 1), say=told.append)
    rows = [row for row in found["table"] if row["entry"] == "bag of words"]
    assert len(rows) == 2 and all(row["mean"] is None and row["note"].startswith("not available") for row in rows)
    assert any(line.startswith("bag of words") and "not available" in line for line in told)
    assert found["metric"] == ("pearson" if why == "regress" else "accuracy")


# --- examples and costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_the_figure_of_all_examples_is_the_figure_of_the_task(task, data, tmp_path):
    source = data
    if task == "regress":
        source = regression(tmp_path)
    elif task == "lm":
        prepare(write_text(tmp_path / "texts", 80), tmp_path / "data", vocab=300, task="lm")
        source = tmp_path / "data"
    given = SMALL | {"train.task": task, "model.stack": "hsm", "model.length": 16, "train.tokens": 200}
    work = TrainingTask(TokenFiles(source), Settings.of(None, given))
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
