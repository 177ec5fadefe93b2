"""Synthetic tasks in `tokmix papers`: the same training as data/synthetic/run.py, equal budgets, and tables that say what was not run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reproduce import synthetic as kind
from reproduce.hypermlp import mad, recall
from reproduce.hypermlp.trials import at_best_rate, best
from reproduce.item import Item
from reproduce.job import Context, Job
from tokmix.core.mixer import mixer_class, mixers
from tokmix.core.stack import parse
from tokmix.data import synthetic
from tokmix.training import synthetic as alone

CPU = Context(torch.device("cpu"), None, lambda text: None)
SMALL = {
    "in_context_recall": {"vocab": 8, "length": 16},
    "fuzzy_recall": {"length": 16},
    "compression": {"vocab": 5, "length": 7},
    "mqar": {"vocab": 32, "length": 20, "pairs": 3},
}


def small(task: str, members: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    spec = {"task": task, "settings": {**SMALL[task], "examples": 64, "tests": 40}, "data_seed": 0, "width": 16, "base": {}, "equal": None}
    models = {"one": {"stack": "attention(heads=2), hsm"}, "other": {"stack": "hypermlp*2", "positions": "none"}}
    return {**spec, "models": models, "members": members, "steps": 4 * kind.REPORTS, "batch": 16, **more}


@pytest.mark.parametrize("task", SMALL)
def test_members_side_by_side_train_as_each_would_alone(task: str) -> None:
    """Four epochs of four steps: the last report is the last epoch."""
    members = [{"model": "one", "lr": 1e-2, "seed": 0}, {"model": "other", "lr": 3e-3, "seed": 0, "weight_decay": 0.1}]
    spec = small(task, members)
    found = kind.run(spec, CPU)
    for member, run in zip(members, found["runs"], strict=True):
        fields = spec["models"][member["model"]]
        settings = {"epochs": 4, "batch": 16, "lr": member["lr"], "weight_decay": member.get("weight_decay", 0.0)}
        single = alone.train(synthetic.create(task, **spec["settings"]), dim=16, **settings, **fields)
        assert run["loss"] == pytest.approx(single.loss, rel=1e-5) and run["state"] == "finished"
        assert run["score"] == pytest.approx(single.accuracy, abs=1e-9)
        assert [point["step"] for point in run["curve"]] == [4, 8, 12, 16]
    assert found["steps"] == 16 and found["tokens"] == 16 * 16 * SMALL[task]["length"]
    assert len(found["data"]) == 2 and len(set(found["data"].values())) == 2


@pytest.mark.parametrize("task", ["mqar", "memorisation", "selective_copying"])
def test_what_is_said_at_the_places_asked_is_what_a_language_model_says_there(task: str) -> None:
    made = synthetic.create(task)
    data = made.make(3, 0)
    config = alone.config(made, "attention(heads=2)", 8)
    whole, asked = alone.build(made, "attention(heads=2)", 8, seed=3).eval(), kind.build(made, config, 3).eval()
    rows = kind.rows(made, data.inputs, data.targets, torch.device("cpu"))
    there = data.targets != -100
    said = rows.logits(asked, torch.arange(3))
    assert torch.allclose(said.flatten(0, 1), whole(data.inputs)[there], atol=1e-6)
    assert torch.equal(rows.wanted.flatten(), data.targets[there])


def test_the_order_is_a_shuffle_of_every_epoch_and_belongs_to_the_seed() -> None:
    drawn = list(kind.batches([0, 1, 0], 10, 4, 7, 5))
    assert [width for width, _ in drawn] == [7] * 5
    index = torch.stack([rows for _, rows in drawn])  # [steps, members, B]
    assert torch.equal(index[:, 0], index[:, 2]) and not torch.equal(index[:, 0], index[:, 1])
    for epoch in (index[:2], index[2:4]):  # two whole batches of the ten rows
        assert len(set(epoch[:, 0].flatten().tolist())) == 8
    assert not torch.equal(index[:2], index[2:4])


def test_a_run_that_diverges_says_so_in_plain_json() -> None:
    found = kind.run(small("in_context_recall", [{"model": "one", "lr": 1e30, "seed": 0}, {"model": "one", "lr": 1e-3, "seed": 0}]), CPU)
    assert [run["state"] for run in found["runs"]] == ["diverged", "finished"]
    assert found["runs"][0]["loss"] is None and found["runs"][1]["loss"] > 0
    json.dumps(found, allow_nan=False)


def test_budgets_are_equal() -> None:
    for task in synthetic.MAD:
        found: dict[str, int] = {}
        for group in mad.GROUPS:
            spec = mad.spec(task, group, [], quick=False)
            made = synthetic.create(task, **spec["settings"])
            found |= {name: kind.describe(made, config)["parameters"] for name, config in kind.configs(spec).items()}
        assert set(found) == set(mad.SHOWN) == set(mad.STACKS)
        for name, count in found.items():
            assert abs(count / found[mad.SOFTMAX] - 1) < 0.005, (task, name)


def test_every_causal_mixer_recalls() -> None:
    stacks = [fields["stack"] for group in recall.GROUPS.values() for fields in group.values()]
    used = {spec.name for stack in stacks for spec in parse(stack)}
    assert used == {name for name in mixers() if "causal" in mixer_class(name).modes}
    assert sum(len({spec.name for spec in parse(stack)}) > 1 for stack in stacks) >= 3, "hybrids"


def outcome(job: Job, score: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    made = {name: {"parameters": 1000, "without_embedding": 900, "state": 12345, "feed_forward": 7} for name in job.spec["models"]}
    runs = [{**member, "state": "finished", "score": score(member), "loss": 1.0} for member in job.spec["members"]]
    return {"runs": runs, "models": made}


def results(item: Item, outcomes: dict[str, Any]) -> dict[str, Any]:
    jobs = [{"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcomes.get(job.key)} for job in item.jobs(False, outcomes)]
    return {"paper": item.paper, "item": item.name, "quick": False, "calls": [], "jobs": jobs}


def everything(item: Item, score: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while new := [job for job in item.jobs(False, found) if job.key not in found]:
        found |= {job.key: outcome(job, score) for job in new}
    return found


def rows_of(text: str) -> dict[str, list[str]]:
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in split}


@pytest.mark.parametrize("item", [mad.ITEM, recall.ITEM], ids=lambda item: item.name)
@pytest.mark.parametrize("quick", [False, True])
def test_jobs_are_files_that_can_be_read_again(item: Item, quick: bool) -> None:
    jobs = item.jobs(quick, {})
    assert len({job.key for job in jobs}) == len(jobs) and all(job.weight > 0 for job in jobs)
    for job in jobs:
        assert json.loads(json.dumps(job.spec)) == job.spec and set(job.key) <= set("abcdefghijklmnopqrstuvwxyz_-0123456789")
        assert {member["model"] for member in job.spec["members"]} == set(job.spec["models"])


def test_seeds_come_at_the_rate_that_was_best() -> None:
    first = mad.jobs(False, {})
    score = lambda member: 0.5 + (member["lr"] == (1e-4 if member["model"] == mad.HYPERMLP else 1e-3)) / 4
    done = {job.key: outcome(job, score) for job in first[:2]}
    done |= {first[2].key: {"error": "out of memory", "runs": []}}
    more = [job for job in mad.jobs(False, done) if job.key.endswith("-seeds")]
    assert [job.key for job in more] == ["in_context_recall-attention-seeds", "in_context_recall-mixing-seeds"]
    for member in (member for job in more for member in job.spec["members"]):
        assert member["lr"] == (1e-4 if member["model"] == mad.HYPERMLP else 1e-3) and member["seed"] in (1, 2)
    assert len(more[1].spec["members"]) == 2 * len(mad.GROUPS["mixing"])


def test_the_best_run_has_the_highest_score_then_the_lowest_loss() -> None:
    runs = [
        {"seed": 0, "lr": 1.0, "score": 0.5, "loss": 0.1, "state": "finished"},
        {"seed": 0, "lr": 2.0, "score": 0.9, "loss": 0.3, "state": "finished"},
        {"seed": 0, "lr": 3.0, "score": 0.9, "loss": 0.2, "state": "finished"},
        {"seed": 1, "lr": 2.0, "score": 1.0, "loss": 0.0, "state": "finished"},
        {"seed": 1, "lr": 3.0, "score": 0.2, "loss": None, "state": "diverged"},
    ]
    assert best(runs[:3])["lr"] == 3.0
    assert [run["score"] for run in at_best_rate(runs)] == [0.9, 0.2], "the other seed has no say"
    assert best([]) is None and at_best_rate([]) == []


@pytest.mark.parametrize("item", [mad.ITEM, recall.ITEM], ids=lambda item: item.name)
def test_a_table_of_nothing_says_not_run_everywhere(item: Item) -> None:
    failed = {item.jobs(False, {})[0].key: {"error": "ValueError: no", "runs": []}}
    for outcomes in ({}, failed):
        shown = rows_of(item.tables(results(item, outcomes)))
        names = mad.SHOWN if item is mad.ITEM else [name for group in recall.GROUPS.values() for name in group]
        for name in names:
            assert shown[name][:4] == ["not run"] * 4


def test_the_table_of_mad_has_means_spreads_and_verdicts() -> None:
    level = {mad.HYPERMLP: 0.9, mad.HYPERGLU: 0.8, mad.R1: 0.87, mad.PLAIN: 0.6, mad.NO_LAG: 0.3}

    def score(member: dict[str, Any]) -> float:
        return (
            level.get(member["model"], 0.85) + 0.001 * member["seed"] * (1 + (member["model"] == mad.HYPERMLP)) - (member["lr"] < 1e-3) / 10
        )

    done = everything(mad.ITEM, score)
    text = mad.tables(results(mad.ITEM, done))
    shown = rows_of(text)
    assert shown[mad.HYPERMLP] == [*["90.2 (0.2)"] * 7, "90.0", "81.01"]
    assert shown[mad.R1][-1] == "" and "within 0.00 % of it" in text
    verdicts = {says: cells[2:4] for says, cells in shown.items() if len(cells) == 6}
    assert [word for says, (word, _) in verdicts.items() if "HyperGLU is ahead" in says] == ["no"]
    assert [word for says, (word, _) in verdicts.items() if "R1 is most" in says] == ["yes"]
    assert [sure for says, (_, sure) in verdicts.items() if "HyperMLP is ahead of softmax" in says] == ["**holds**"]
    assert [sure for says, (_, sure) in verdicts.items() if "ReLU attention is ahead" in says] == ["**unclear**"]
    for key in [key for key in done if key.startswith("compression-mixing")]:
        del done[key]
    shown = rows_of(mad.tables(results(mad.ITEM, done)))
    assert shown[mad.HYPERMLP][5:8] == ["not run"] * 3 and shown[mad.HYPERMLP][0] == "90.2 (0.2)"
    assert shown[mad.SOFTMAX][6] != "not run", "a mean needs its own six tasks alone"


def test_the_table_of_recall_takes_the_best_rate_and_the_narrow_models_first() -> None:
    narrow = recall.jobs(False, {})
    assert {job.spec["width"] for job in narrow} == {64}
    done = {job.key: outcome(job, lambda member: member["lr"] * 50) for job in narrow}
    wide = recall.jobs(False, done)
    assert {job.spec["width"] for job in wide} == {64, 128} and len(wide) == 2 * len(narrow)
    first, second = recall.tables(results(recall.ITEM, done)).split("Width 128")
    assert rows_of(first)["HyperGLU"] == [*["50.0"] * 4, "900", "12,345"]
    assert rows_of(second)["HyperGLU"] == ["not run"] * 6


@pytest.mark.parametrize("item", [mad.ITEM, recall.ITEM], ids=lambda item: item.name)
def test_quick_goes_from_jobs_to_a_table(item: Item) -> None:
    """Of MAD one task, through both of its phases."""
    chosen = lambda job: item is recall.ITEM or job.key.startswith("selective_copying-mixing")
    done: dict[str, Any] = {}
    while new := [job for job in item.jobs(True, done) if chosen(job) and job.key not in done]:
        done |= {job.key: json.loads(json.dumps(kind.run(job.spec, CPU), allow_nan=False)) for job in new}
    assert len(done) == (2 if item is mad.ITEM else 4)
    for found in done.values():
        assert all(run["state"] == "finished" and 0 <= run["score"] <= 1 for run in found["runs"])
    jobs = [{"key": job.key, "spec": job.spec, "outcome": done.get(job.key)} for job in item.jobs(True, done)]
    text = item.tables({"quick": True, "jobs": jobs})
    shown = rows_of(text)
    assert text.startswith("A quick run")
    if item is recall.ITEM:
        assert all("not run" not in cells for cells in shown.values())
    else:
        assert shown[mad.HYPERMLP][0] == "not run" and shown[mad.HYPERMLP][3] != "not run"
