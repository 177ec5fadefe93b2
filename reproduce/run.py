"""An item's jobs, over worker processes, as far as the time goes; a second call goes on where the first one ended."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from bench.speed.machine import code
from reproduce import results
from reproduce.item import Item
from reproduce.job import Job
from reproduce.worker import PAUSED
from tokmix.core.checks import at_least, nearest
from tokmix.runs import pool
from tokmix.runs.cluster import ClusterPool
from tokmix.runs.files import write_text
from tokmix.runs.machine import machine, versions
from tokmix.training.meter import Meter

Say = Callable[[str], None]
WORKER = "reproduce.worker"
THREADS = 4  # of a job on a cluster
LEAST = 45.0  # seconds that a resumable job must have left, since building its graphs takes most of that


def run(
    items: Sequence[Item],
    out: Path,
    *,
    data: Path | None,
    quick: bool = False,
    device: str | None = None,
    workers: int | None = None,
    minutes: float | None = None,
    on: str | None = None,
    only: Sequence[str] = (),
    say: Say = print,
) -> bool:
    """All jobs of all items, side by side; only: of those with such a name, * for anything, in the order of these names. -> whether none
    is left to be done (some may have failed)."""
    _check(device, workers, minutes, on)
    book = _Book(items, out, torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    crew = _Crew(items, out, data, quick, only, say, book)
    crew.check_names()
    try:
        if jobs := len(crew.left()):
            fed: pool.AnyPool
            if on is not None:
                fed = cluster = ClusterPool(on, device, THREADS, out / "workers.log", WORKER, say)
                book.workers = cluster.size
            else:
                fed = here = _local_pool(jobs, device, workers, out / "workers.log", minutes, say)
                book.workers = crew.sharing = crew.slots = len(here.devices)
                crew.until = here.until
            fed.run(crew.new(), crew.report, crew.new)
    finally:
        book.write()
        for item in items:
            results.collect(item, out, quick)
    return not crew.left()


def _local_pool(jobs: int, device: str | None, workers: int | None, log: Path, minutes: float | None, say: Say) -> pool.Pool:
    devices, threads = pool.share_out(device, workers, jobs)
    say(f"{jobs} jobs, {len(devices)} at a time, on {', '.join(sorted(set(devices)))}")
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    return pool.Pool(devices, threads, log, WORKER, say, until)


def _check(device: str | None, workers: int | None, minutes: float | None, on: str | None) -> None:
    for option, given in (("--workers", workers), ("--minutes", minutes)):
        if on is not None and given is not None:
            raise ValueError(f"{option} is for this machine, and --on {on} names a cluster: leave one of them out")
    if workers is not None:
        at_least("--workers", workers, 1)
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"--minutes {minutes} should be 0 or more")
    if device is None or device == "cpu":
        return
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise ValueError(f"device {device!r} is unknown; known: cpu, cuda, cuda:N")
    if not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is not there: torch {torch.__version__} finds no GPU")
    if int(device[5:] or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not there: torch finds {torch.cuda.device_count()} GPUs, from cuda:0 on")


class _Crew:
    """Which jobs have been handed out, and what came back."""

    def __init__(self, items: Sequence[Item], out: Path, data: Path | None, quick: bool, only: Sequence[str], say: Say, book: _Book):
        self.items, self.out, self.data, self.quick, self.only, self.say, self.book = items, out, data, quick, only, say, book
        self.sharing = 1  # workers that share a device, so that its energy is that of all of them; a cluster has one a GPU
        self.slots: float = math.inf  # workers: no more jobs are handed out, so that the next one is always that of most worth
        self.until = math.inf
        self.handed: set[str] = set()  # files of jobs
        self.told = 0

    def check_names(self) -> None:
        keys = [job.key for item in self.items for job in results.known(item, results.jobs_folder(self.out, item.name), self.quick)[0]]
        for name in self.only:
            if not any(fnmatchcase(key, name) for key in keys):
                raise ValueError(f"--only {name}: no job has such a name by now (* stands for anything){nearest(name, keys)}")

    def left(self) -> list[tuple[Item, Job]]:
        """The jobs that could be done now: in the order of the names that were given, begun ones, then those of most worth, then the
        longest first."""
        found: list[tuple[Item, Job]] = []
        for item in self.items:
            jobs, outcomes = results.known(item, results.jobs_folder(self.out, item.name), self.quick)
            named = {job.file for _, job in found}  # what two items share is done once
            wanted = [job for job in jobs if self._place(job) is not None]
            found += [(item, job) for job in wanted if job.key not in outcomes and job.file not in named]
        begun = lambda item, job: results.checkpoint(results.jobs_folder(self.out, item.name), job).is_file()
        return sorted(found, key=lambda one: (self._place(one[1]), not begun(*one), -one[1].worth, -one[1].weight))

    def _place(self, job: Job) -> int | None:
        """Of the first name that means this job; None where none does."""
        return next((place for place, name in enumerate(self.only or ["*"]) if fnmatchcase(job.key, name)), None)

    def new(self) -> list[pool.Task]:
        """Tasks for workers that have nothing to do, of what has not been handed out yet and fits into the time."""
        found = [(item, job) for item, job in self.left() if job.file not in self.handed and self._fits(job)]
        if self.slots < math.inf:
            found = found[: int(self.slots) - len(self.handed) + self.told]
        self.handed |= {job.file for _, job in found}
        until = None if self.until == math.inf else self.until
        return [_task(item, job, self.out, self.data) | {"workers": self.sharing, "until": until} for item, job in found]

    def _fits(self, job: Job) -> bool:
        """Of a job that says how long it takes: whether it would end in time, or come far enough to be worth its start."""
        needed = 0.0 if job.seconds is None else min(job.seconds, LEAST) if job.resumable else job.seconds
        return time.monotonic() + needed <= self.until

    def report(self, task: pool.Task, answer: dict[str, Any]) -> None:
        self.told += 1
        if answer["state"] == pool.NOT_RUN:
            return
        jobs = len(self.handed | {job.file for _, job in self.left()})
        place = f"[{self.told}/{jobs}] {task['item']} {task['key']}"
        if "seconds" not in answer:  # its process died
            self.say(f"{place}: {answer['error']}")
            return
        self.book.add(task["item"], answer["seconds"])
        done = "stopped, to go on later, after" if answer["state"] == PAUSED else f"{answer['error'] or 'done'} in"
        self.say(f"{place}: {done} {answer['seconds']:.1f} s")
        results.collect(next(item for item in self.items if item.name == task["item"]), self.out, self.quick)  # as far as it goes


def _task(item: Item, job: Job, out: Path, data: Path | None) -> pool.Task:
    folder = results.jobs_folder(out, item.name).resolve()
    place = {"item": item.name, "data": None if data is None else str(data.resolve()), "out": str(folder / job.file)}
    if job.resumable:
        place["checkpoint"] = str(results.checkpoint(folder, job))
    return place | {name: value for name, value in asdict(job).items() if name in ("key", "kind", "spec")}


def _told(arguments: Sequence[str]) -> str:
    """The command as somebody else would type it: where folders were is nobody's business."""
    before = ["", *arguments]
    return shlex.join(["tokmix", *("DIR" if last in ("--data", "--out") else one for last, one in zip(before, arguments, strict=False))])


class _Book:
    """What a call takes, told after every job: also of a call that is killed. Several items share its seconds and its energy by what
    their jobs took."""

    def __init__(self, items: Sequence[Item], out: Path, device: torch.device):
        self.began, self.workers, self.meter = time.monotonic(), 0, Meter(device)
        self.meter.start()
        self.where = {"machine": machine(), "versions": versions(), "code": code()}
        self.files = {item.name: results.jobs_folder(out, item.name) / results.CALLS for item in items}
        self.before = {name: file.read_text(encoding="utf-8") if file.is_file() else "" for name, file in self.files.items()}
        self.seconds: dict[str, float] = {}  # item -> of its jobs, in this call

    def add(self, item: str, seconds: float) -> None:
        self.seconds[item] = self.seconds.get(item, 0.0) + seconds
        self.write()

    def write(self) -> None:
        self.meter.sample(now=True)
        measured, whole = self.meter.totals(), time.monotonic() - self.began
        joules = measured["energy_joules"]
        for item, seconds in self.seconds.items():
            share = seconds / sum(self.seconds.values())
            line = {
                "command": _told(sys.argv[1:]), "seconds": share * whole, "workers": self.workers,
                "energy_joules": None if joules is None else share * joules, "energy_source": measured["energy_source"],
                **self.where,
            }  # fmt: skip
            self.files[item].parent.mkdir(parents=True, exist_ok=True)
            write_text(self.files[item], self.before[item] + json.dumps(line) + "\n")
