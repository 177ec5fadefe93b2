"""Long jobs in pieces: stopped and continued, with the same weights in the end; what the queue starts and when."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduce import lm, pieces, results
from reproduce import run as running
from reproduce.item import Item
from reproduce.job import Context, Job, PausedError
from reproduce.run import run

MODEL = {"stack": "hsm, attention", "dim": 16, "vocab": 256, "max_len": 16, "feed_forward": 32, "dropout": 0.1}


def spec(**changed: Any) -> dict[str, Any]:
    members = [{"seed": 0, "lr": 1e-2}, {"seed": 1, "lr": 2e-2}]
    small = {"text": "made-up", "model": MODEL, "members": members, "batch": 8, "steps": 12, "warmup": 2, "points": 3, "peek": 4}
    return small | changed


class Stopping(Context):
    """The time is over after so many questions."""

    @property
    def late(self) -> bool:
        left[0] -= 1
        return left[0] < 0


left = [0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_job_in_pieces_ends_where_one_in_a_single_piece_does(tmp_path: Path, optimizer: str) -> None:
    made, say = spec(optimizer=optimizer), lambda line: None
    whole = lm.run(made, Context(torch.device("cpu"), None, say))
    stopped = 0
    for after in (5, 3, 100):  # at step 6, which is no report, and at step 10
        left[0] = after
        try:
            found = lm.run(made, Stopping(torch.device("cpu"), None, say, tmp_path / "job.checkpoint"))
        except PausedError:
            stopped += 1
            assert (tmp_path / "job.checkpoint").is_file()
    assert stopped == 2 and not (tmp_path / "job.checkpoint").exists()
    for one, other in zip(found["runs"], whole["runs"], strict=True):
        assert one["score"] == other["score"] and one["bits_per_byte"] == other["bits_per_byte"]
        assert [point["step"] for point in one["curve"]] == [point["step"] for point in other["curve"]] == [4, 8, 12]
        assert [point["loss"] for point in one["curve"]] == [point["loss"] for point in other["curve"]]
    assert found["runs"][0]["score"] != found["runs"][1]["score"] and found["training_seconds"] > 0


def test_optimizers_differ() -> None:
    say = lambda line: None
    scores = [lm.run(spec(optimizer=kind), Context(torch.device("cpu"), None, say))["runs"][0]["score"] for kind in ("adamw", "muon")]
    assert scores[0] != scores[1]


def test_the_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    left[0] = 3
    with pytest.raises(PausedError):
        lm.run(spec(), Stopping(torch.device("cpu"), None, lambda line: None, tmp_path / "one"))
    with pytest.raises(ValueError, match="checkpoint of another job"):
        lm.run(spec(steps=13), Stopping(torch.device("cpu"), None, lambda line: None, tmp_path / "one"))


def test_a_checkpoint_is_kept_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a run that is not stopped: the machine may be taken away."""
    monkeypatch.setattr(pieces, "OFTEN", 0.0)
    kept: list[int] = []
    before = pieces.Pieces.save
    monkeypatch.setattr(pieces.Pieces, "save", lambda self, notes: (before(self, notes), kept.append(self.members[0].done))[0])
    lm.run(spec(), Context(torch.device("cpu"), None, lambda line: None, tmp_path / "one"))
    assert kept == [4, 8] and not (tmp_path / "one").exists()


# --- the queue -----------------------------------------------------------------------------------------------------------------


def queue(*jobs: Job) -> Item:
    return Item("fair", "made_up", "made up", lambda quick, outcomes: list(jobs), lambda content: "")


def crew(items: list[Item], out: Path) -> running._Crew:
    return running._Crew(items, out, None, False, (), print, None)  # type: ignore[arg-type]


def test_what_is_worth_most_comes_first_over_all_items_and_begun_work_before_it(tmp_path: Path) -> None:
    one = Item("fair", "one", "", lambda quick, outcomes: [Job("a", "lm", {"x": 1}, worth=1), Job("b", "lm", {"x": 2}, worth=3)], str)
    two = Item("fair", "two", "", lambda quick, outcomes: [Job("c", "lm", {"x": 3}, worth=2), Job("d", "rows", {"x": 4}, weight=9)], str)
    made = crew([one, two], tmp_path)
    assert [job.key for _, job in made.left()] == ["b", "c", "a", "d"]
    begun = results.checkpoint(results.jobs_folder(tmp_path, "one"), Job("a", "lm", {"x": 1}))
    begun.parent.mkdir(parents=True)
    begun.touch()
    assert [job.key for _, job in made.left()] == ["a", "b", "c", "d"]
    made.slots = 1  # one worker is handed one job, so that what is named later can still come before the rest
    assert [task["key"] for task in made.new()] == ["a"] and made.new() == []
    assert made.left()[0][1].resumable and not made.left()[-1][1].resumable


def test_a_job_that_would_not_end_in_time_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job("long", "rows", {"x": 1}, worth=3, seconds=90.0), Job("pieces", "lm", {"x": 2}, worth=2, seconds=4000.0),
            Job("short", "rows", {"x": 3}, worth=1, seconds=20.0), Job("unknown", "rows", {"x": 4})]  # fmt: skip
    made = crew([queue(*jobs)], tmp_path)
    monkeypatch.setattr(running.time, "monotonic", lambda: 1000.0)
    for seconds, begun in (
        (math.inf, ["long", "pieces", "short", "unknown"]),
        (60, ["pieces", "short", "unknown"]),
        (30, ["short", "unknown"]),
    ):
        made.handed.clear()
        made.until = 1000.0 + seconds
        assert [task["key"] for task in made.new()] == begun


def test_a_command_goes_on_with_a_job_that_was_stopped(tmp_path: Path) -> None:
    """With workers of their own, as the command does it."""
    item, said = queue(Job("job", "lm", spec(steps=40, points=2), worth=1)), []
    results.jobs_folder(tmp_path, "made_up").mkdir(parents=True)
    left[0] = 7
    job = item.jobs(False, {})[0]
    path = results.checkpoint(results.jobs_folder(tmp_path, "made_up"), job)
    with pytest.raises(PausedError):
        lm.run(job.spec, Stopping(torch.device("cpu"), None, lambda line: None, path))
    assert run([item], tmp_path, data=None, device="cpu", workers=1, say=said.append)
    found = results.outcomes(results.load(tmp_path / "made_up.json"))["job"]
    assert found["runs"][0]["score"] == lm.run(job.spec, Context(torch.device("cpu"), None, lambda line: None))["runs"][0]["score"]
    assert not path.exists() and "done" in said[-1]
