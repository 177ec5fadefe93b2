"""Jobs of an item: resumed, in phases, as far as the time goes, failures kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduce import job as jobs
from reproduce import results, worker
from reproduce import run as running
from reproduce.item import Item
from reproduce.job import Context, Job
from reproduce.run import run
from tokmix.runs import pool

ROOT = Path(__file__).parents[2]


def work(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    """A kind for these tests, done by the worker processes."""
    if spec.get("breaks"):
        raise ValueError("no luck\nwith this one")
    return {"runs": [{"seed": seed, "score": spec["value"] + seed} for seed in spec["seeds"]]}


def item(name: str = "made_up", value: int = 1, breaks: bool = False) -> Item:
    def named(quick: bool, outcomes: dict[str, dict[str, Any]]) -> list[Job]:
        search = Job("search", "made_up", {"value": value, "seeds": [0, 1], "breaks": breaks}, weight=2)
        other = Job("other", "made_up", {"value": 6 + value, "seeds": [0], "quick": quick})
        found = [search, other]
        if "search" in outcomes and (scores := outcomes["search"]["runs"]):
            found.append(Job("final", "made_up", {"value": max(run["score"] for run in scores), "seeds": [5]}))
        return found

    return Item("hypermixer", name, "made up", named, lambda _: "")


class Here(pool.Pool):
    """A pool without processes."""

    def run(self, tasks: Any, report: Any, more: Any = tuple) -> None:
        while tasks:
            for task in tasks:
                report(task, worker.do(json.loads(json.dumps({**task, "device": self.devices[0]}))))
            tasks = more()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Pool", Here)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers are processes: they learn of the kind through a module that Python runs at its start."""
    tests = Path(__file__).parent
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("from reproduce import job\njob.KINDS['made_up'] = 'test_papers_run:work'\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{tests}:{ROOT}:{ROOT / 'src'}")
    monkeypatch.setitem(jobs.KINDS, "made_up", f"{__name__}:work")


def test_phases_follow_each_other_and_a_second_call_does_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    assert run([item()], tmp_path / "out", data=None, workers=2, device="cpu", say=said.append)
    content = results.load(tmp_path / "out" / "made_up.json")
    assert [one["key"] for one in content["jobs"]] == ["search", "other", "final"]
    assert results.outcomes(content)["final"]["runs"] == [{"seed": 5, "score": 7}]
    first = content["jobs"][0]
    assert first["measured"]["seconds"] > 0 and first["versions"]["torch"] and first["code"]["source_sha256"] and first["machine"]["cores"]
    assert len(content["calls"]) == 1 and content["calls"][0]["seconds"] > 0
    said.clear()
    assert run([item()], tmp_path / "out", data=None, workers=2, device="cpu", say=said.append) and not said
    assert results.load(tmp_path / "out" / "made_up.json") == content


def test_another_setting_is_another_job(tmp_path: Path, here: None) -> None:
    run([item(value=1)], tmp_path, data=None, workers=1, device="cpu", say=lambda _: None)
    run([item(value=3)], tmp_path, data=None, workers=1, device="cpu", say=lambda _: None)
    assert results.outcomes(results.load(tmp_path / "made_up.json"))["final"]["runs"] == [{"seed": 5, "score": 9}]


def test_only_some_jobs(tmp_path: Path, here: None) -> None:
    assert run([item()], tmp_path, data=None, workers=1, device="cpu", only=["sear*"], say=lambda _: None)
    assert run([item()], tmp_path, data=None, workers=1, device="cpu", only=["fin*"], say=lambda _: None)
    content = results.load(tmp_path / "made_up.json")
    assert [(one["key"], one["outcome"] is not None) for one in content["jobs"]] == [("search", True), ("other", False), ("final", True)]


def test_jobs_come_in_the_order_of_the_names(tmp_path: Path, here: None) -> None:
    """Longest first, where no name says otherwise."""
    for place, (only, first) in enumerate([(["*"], "search"), (["oth*", "*"], "other")]):
        said: list[str] = []
        assert run([item()], tmp_path / str(place), data=None, workers=1, device="cpu", only=only, say=said.append)
        done = [line for line in said if "done" in line]
        assert first in done[0] and len(done) == 3


def test_a_name_that_no_job_has_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--only serch: no job has such a name by now .*, did you mean 'search'\?"):
        run([item()], tmp_path, data=None, workers=1, device="cpu", only=["serch"], say=lambda _: None)


def test_a_failure_is_an_outcome_in_one_line(tmp_path: Path, here: None) -> None:
    said: list[str] = []
    assert run([item(breaks=True)], tmp_path, data=None, workers=1, device="cpu", say=said.append)
    outcome = results.outcomes(results.load(tmp_path / "made_up.json"))["search"]
    assert outcome["error"] == "ValueError: no luck with this one" and any("no luck with this one" in line for line in said)


def test_no_time_means_not_run(tmp_path: Path) -> None:
    assert not run([item()], tmp_path, data=None, workers=1, device="cpu", minutes=0, say=lambda _: None)
    content = results.load(tmp_path / "made_up.json")
    assert [one["outcome"] for one in content["jobs"]] == [None, None] and results.outcomes(content) == {}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"workers": 0}, "--workers=0 is not a whole number of at least 1"),
        ({"workers": -2}, "--workers=-2"),
        ({"minutes": -1.0}, "--minutes -1.0 should be 0 or more"),
        ({"device": "gpu"}, "device 'gpu' is unknown; known: cpu, cuda, cuda:N"),
        ({"device": "cuda:999"}, "device 'cuda:999' is not there"),
    ],
)
def test_what_cannot_be_run_with_is_refused_before_anything_is_written(tmp_path: Path, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        run([item()], tmp_path / "out", data=None, say=lambda _: None, **asked)
    assert not (tmp_path / "out").exists()


def test_a_call_shares_its_cost_among_its_items(tmp_path: Path, here: None) -> None:
    run([item("one", value=1), item("two", value=2)], tmp_path, data=None, workers=1, device="cpu", say=lambda _: None)
    for name in ("one", "two"):
        assert results.load(tmp_path / f"{name}.json")["calls"][0]["seconds"] > 0


def test_a_call_that_is_killed_has_told_what_it_took(tmp_path: Path, here: None) -> None:
    run([item()], tmp_path, data=None, workers=1, device="cpu", only=["other"], say=lambda _: None)
    killed = running._Book([item()], tmp_path, torch.device("cpu"))
    for _ in range(2):
        killed.add("made_up", 3.0)
    results.collect(item(), tmp_path, False)
    calls = results.load(tmp_path / "made_up.json")["calls"]
    assert len(calls) == 2 and calls[1]["seconds"] > 0


def test_what_another_item_has_done_is_taken_from_there(tmp_path: Path, here: None) -> None:
    run([item("one")], tmp_path, data=None, workers=1, device="cpu", say=lambda _: None)
    said: list[str] = []
    assert run([item("two")], tmp_path, data=None, workers=1, device="cpu", say=said.append) and not said
    assert results.load(tmp_path / "two.json")["jobs"] == results.load(tmp_path / "one.json")["jobs"]


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "is no results file"), ("[]", "is no results file"), (json.dumps({"format": "tokmix-papers", "version": 9}), "version 9")],
)
def test_other_files_are_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=told):
        results.load(tmp_path / "x.json")


def test_a_call_is_told_without_the_folders_of_its_machine() -> None:
    given = ["papers", "hypermixer", "--data", "/home/me/data", "--only", "sst2-*", "--out", "out"]
    assert running._told(given) == "tokmix papers hypermixer --data DIR --only 'sst2-*' --out DIR"
