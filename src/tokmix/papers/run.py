"""An item's jobs, over worker processes, as far as the time goes; a second call goes on where the first one ended."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tokmix.bench.machine import code
from tokmix.compare import pool
from tokmix.lab.machine import machine, versions
from tokmix.lab.meter import Meter
from tokmix.papers import results
from tokmix.papers.item import Item
from tokmix.papers.job import Job

Say = Callable[[str], None]
NOT_RUN = "not run"


class _TimedPool(pool.Pool):
    """Hands out no task any more once the time is over."""

    deadline: float | None = None

    def _ask(self, place: int, task: pool.Task) -> dict[str, Any]:
        if self.deadline is not None and time.monotonic() > self.deadline:
            return {"state": NOT_RUN}
        return super()._ask(place, task)


def run(
    items: Sequence[Item],
    out: Path,
    *,
    data: Path | None,
    quick: bool = False,
    device: str | None = None,
    workers: int | None = None,
    minutes: float | None = None,
    say: Say = print,
) -> bool:
    """All jobs of all items, side by side. -> whether none is left to be done (some may have failed)."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    began, meter = time.monotonic(), Meter(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    meter.start()
    done: dict[str, float] = {}  # item -> seconds of its jobs in this call
    count = 0
    try:
        while todo := _left(items, out, quick):
            devices, threads = pool.share_out(device, workers, len(todo))
            count = max(count, len(devices))
            say(f"{len(todo)} jobs, {len(devices)} at a time, on {', '.join(sorted(set(devices)))}")
            if not _round(todo, out, data, devices, threads, deadline, done, say):
                break
    finally:
        meter.stop()
        whole = time.monotonic() - began
        for item in items:
            if item.name in done:
                _note_call(item, out, whole, done, count, meter)
            results.collect(item, out, quick)
    return not _left(items, out, quick)


def _left(items: Sequence[Item], out: Path, quick: bool) -> list[tuple[Item, Job]]:
    """The jobs that can be done now, longest first."""
    found: list[tuple[Item, Job]] = []
    for item in items:
        jobs, outcomes = results.known(item, results.jobs_folder(out, item.name), quick)
        named = {job.file for _, job in found}  # what two items share is done once
        found += [(item, job) for job in jobs if job.key not in outcomes and job.file not in named]
    return sorted(found, key=lambda one: -one[1].weight)


def _round(
    todo: Sequence[tuple[Item, Job]], out: Path, data: Path | None, devices: list[str], threads: int, deadline: float | None,
    done: dict[str, float], say: Say,
) -> bool:  # fmt: skip
    """-> whether all of them were done."""
    workers = _TimedPool(devices, threads, out / "workers.log", "tokmix.papers.worker")
    workers.deadline = deadline
    tasks = [_task(item, job, out, data, len(devices)) for item, job in todo]
    told, complete = 0, True

    def report(task: dict[str, Any], answer: dict[str, Any]) -> None:
        nonlocal told, complete
        told += 1
        if answer["state"] == NOT_RUN or "seconds" not in answer:  # no time, or its process died
            complete = False
            if answer["state"] != NOT_RUN:
                say(f"[{told}/{len(tasks)}] {task['item']} {task['key']}: {answer['error']}")
            return
        done[task["item"]] = done.get(task["item"], 0.0) + answer["seconds"]
        say(f"[{told}/{len(tasks)}] {task['item']} {task['key']}: {answer['error'] or 'done'} in {answer['seconds']:.1f} s")

    workers.run(tasks, report)
    return complete


def _task(item: Item, job: Job, out: Path, data: Path | None, workers: int) -> dict[str, Any]:
    path = (results.jobs_folder(out, item.name) / job.file).resolve()
    place = {"item": item.name, "data": None if data is None else str(data.resolve()), "out": str(path), "workers": workers}
    return place | {name: value for name, value in asdict(job).items() if name != "weight"}


def _note_call(item: Item, out: Path, whole: float, done: dict[str, float], workers: int, meter: Meter) -> None:
    """Several items in one call share its seconds and its energy by what their jobs took."""
    share = done[item.name] / sum(done.values())
    measured = meter.totals()
    joules = measured["energy_joules"]
    line = {
        "command": shlex.join(["tokmix", *sys.argv[1:]]), "seconds": share * whole, "workers": workers,
        "energy_joules": None if joules is None else share * joules, "energy_source": measured["energy_source"],
        "machine": machine(), "versions": versions(), "code": code(),
    }  # fmt: skip
    folder = results.jobs_folder(out, item.name)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / results.CALLS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
