"""What is left to run, in the order in which it would be done, with its estimated seconds of one GPU: `tokmix papers NAME --plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reproduce import results
from reproduce.item import Item, Outcomes
from reproduce.job import Job

MIDDLE = 3.0  # nats of a made-up run at the rate in the middle


def lines(items: Sequence[Item], out: Path, quick: bool) -> Iterable[str]:
    """A line a job: where it stands, its seconds, its name. Jobs that can be named only when others are done stand there too, for outcomes
    that need no further rate."""
    rows: list[tuple[Item, Job, str]] = []
    for item in items:
        folder = results.jobs_folder(out, item.name)
        named, known = results.known(item, folder, quick)
        now = {job.key for job in named}
        for job in expected(item, quick, dict(known)):
            begun = results.checkpoint(folder, job).is_file()
            word = "done" if job.key in known else "later" if job.key not in now else "begun" if begun else "next"
            rows.append((item, job, word))
    left = sorted((row for row in rows if row[2] != "done"), key=lambda row: (row[2] != "begun", -row[1].worth, -row[1].weight))
    for item, job, word in left:
        yield f"{word:5}  {_seconds(job):>9}  {item.name} {job.key}"
    known_seconds = [job.seconds for _, job, _ in left if job.seconds is not None]
    total, unknown = sum(known_seconds), len(left) - len(known_seconds)
    yield f"{len(rows) - len(left)} jobs are done, {len(left)} are left: about {total:,.0f} s of one GPU, {total / 3600:.1f} hours" + (
        f"; nobody has estimated {unknown} of them" if unknown else ""
    )


def _seconds(job: Job) -> str:
    return "?" if job.seconds is None else f"{job.seconds:,.0f} s"


def expected(item: Item, quick: bool, outcomes: Outcomes) -> list[Job]:
    """All jobs, as if those that are not done had an outcome."""
    while True:
        jobs = item.jobs(quick, outcomes)
        new = [job for job in jobs if job.key not in outcomes]
        if not new:
            return jobs
        outcomes |= {job.key: made_up(job) for job in new}


def made_up(job: Job) -> dict[str, Any]:
    """An outcome of the right form, whose best rate is one in the middle of those tried."""
    members = job.spec.get("members", [])
    rates = sorted({one["lr"] for one in members if "lr" in one})
    middle = rates[(len(rates) - 1) // 2] if len(rates) > 2 else max(rates, default=0.0)
    runs = []
    for one in members:
        away = abs(rates.index(one["lr"]) - rates.index(middle)) if rates else 0
        score = MIDDLE + away / 10
        runs.append({
            **one, "state": "finished", "score": 1 / score if job.kind == "rows" else score, "bits_per_byte": score / 3, "dev": 0.5
        })  # fmt: skip
    found: dict[str, Any] = {"runs": runs}
    if job.kind == "lm_speed":
        found["speeds"] = {name: {"tokens_per_s": 1e6, "decode_us": 100.0, "state_numbers": 1} for name in job.spec["models"]}
    return found
