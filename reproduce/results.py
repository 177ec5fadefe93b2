"""Results on disk.

OUT/ITEM.jobs/KEY-MARK.json   what came of one job, written when it is done; a second call goes on from there
OUT/ITEM.jobs/KEY-MARK.checkpoint   how far a long job is, until it is done
OUT/ITEM.jobs/calls.jsonl     one line a call: seconds, energy, workers
OUT/ITEM.json                 the results file: all of it in one
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from tokmix.runs.files import write_json

FORMAT, VERSION = "tokmix-papers", 1
CALLS = "calls.jsonl"


def jobs_folder(out: Path, item: str) -> Path:
    return out / f"{item}.jobs"


def checkpoint(folder: Path, job: Job) -> Path:
    return (folder / job.file).with_suffix(".checkpoint")


def read_job(folder: Path, job: Job) -> dict[str, Any] | None:
    """Also where another item has done the very same job: ablations and curves begin with searches and runs of a main table."""
    for path in (folder / job.file, *sorted(folder.parent.glob(f"*.jobs/{job.file}"))):
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    return None


def known(item: Item, folder: Path, quick: bool) -> tuple[list[Job], Outcomes]:
    """The jobs that can be named, and the outcomes of those that are done. A job that failed is done: it would fail again, and
    what a later phase makes of it is the item's affair."""
    outcomes: Outcomes = {}
    jobs: list[Job] = []
    while True:
        named = item.jobs(quick, outcomes)
        new = [job for job in named if job.key not in {one.key for one in jobs}]
        jobs += new
        for job in new:
            if (found := read_job(folder, job)) is not None:
                outcomes[job.key] = found["outcome"]
        if not new:
            return jobs, outcomes


def collect(item: Item, out: Path, quick: bool) -> Path:
    """-> the results file, made from what is there; jobs that are not done stand in it without an outcome."""
    folder = jobs_folder(out, item.name)
    jobs, _ = known(item, folder, quick)
    records = [read_job(folder, job) or {"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": None} for job in jobs]
    calls = [json.loads(line) for line in (folder / CALLS).read_text().splitlines()] if (folder / CALLS).is_file() else []
    content = {
        "format": FORMAT,
        "version": VERSION,
        "paper": item.paper,
        "item": item.name,
        "quick": quick,
        "calls": calls,
        "jobs": records,
    }
    path = out / f"{item.name}.json"
    write_json(path, content)
    return path


def load(path: Path) -> Results:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no results file: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no results file of tokmix papers")
    if content["version"] != VERSION:
        raise ValueError(f"{path} has format version {content['version']}; this tokmix reads {VERSION}")
    return content


def outcomes(results: Results) -> Outcomes:
    """Of the jobs that were done, failed ones among them ("error" in their outcome)."""
    return {job["key"]: job["outcome"] for job in results["jobs"] if job["outcome"] is not None}
