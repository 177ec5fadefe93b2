"""The pool of `tune`, `compare` and the paper runs. On this machine a worker is a process, fed by a thread. A worker that dies is
replaced, and its task is repeated. cluster.py is the same for the workers of a cluster."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tokmix.runs.files import JsonObject

Task = JsonObject  # its keys are those of the module that the workers run
Answer = JsonObject
Report = Callable[[Task, Answer], None]
More = Callable[[], Sequence[Task]]
Say = Callable[[str], None]
ATTEMPTS = 3  # a task during which this many processes died is given up
NOT_RUN = "not run"


class Lost(RuntimeError):
    """The process of a worker ended in the middle of its task."""


class AnyPool(Protocol):
    def run(self, tasks: Sequence[Task], report: Report, more: More = ...) -> None:
        """report(task, answer) is called for each answer, one at a time; more(), called after each, returns new tasks. They are done
        next, so that begun work is finished first.
        KeyboardInterrupt, also after SIGTERM: runs save a checkpoint first."""


class InProcess:
    """A single worker: this process itself."""

    def __init__(self, do: Callable[[Task], Answer], device: str | None):
        self.do, self.device = do, device

    def run(self, tasks: Sequence[Task], report: Report, more: More = tuple) -> None:
        todo = list(tasks)
        with sigterm_interrupts():
            while todo:
                task = todo.pop(0)
                report(task, self.do({**task, "device": self.device}))
                todo = [*more(), *todo]


class Pool:
    def __init__(
        self, devices: Sequence[str | None], threads: int, log: Path, module: str, say: Say = lambda line: None, until: float = math.inf
    ):
        """devices: one for each worker; threads: of torch in each of them; module: that a worker runs; until: time of
        time.monotonic(), after which no task is begun."""
        self.devices, self.threads, self.log, self.module, self.say, self.until = devices, threads, log, module, say, until
        self.workers: dict[int, subprocess.Popen[str]] = {}
        self.lock, self.stopped = threading.Lock(), False

    def run(self, tasks: Sequence[Task], report: Report, more: More = tuple) -> None:
        todo: queue.LifoQueue[Task | None] = queue.LifoQueue()
        done: queue.Queue[tuple[Task, Answer]] = queue.Queue()
        feeders = [threading.Thread(target=self._feed, args=(place, todo, done)) for place in range(len(self.devices))]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with sigterm_interrupts():
            for feeder in feeders:
                feeder.start()
            try:
                waiting = 0
                new = tasks
                while new or waiting:
                    for task in reversed(new):
                        todo.put(task)
                    waiting += len(new) - 1
                    report(*done.get())
                    new = more()
            finally:
                self.stop()
                for _ in feeders:
                    todo.put(None)  # threads that wait for a task end
                self._join(feeders)

    def _join(self, feeders: Sequence[threading.Thread]) -> None:
        """Join the threads; a second Ctrl-C does not wait for checkpoints."""
        try:
            for feeder in feeders:
                feeder.join()
        except KeyboardInterrupt:
            for worker in list(self.workers.values()):
                worker.kill()
            raise

    def _feed(self, place: int, todo: queue.LifoQueue[Task | None], done: queue.Queue[tuple[Task, Answer]]) -> None:
        while not self.stopped and (task := todo.get()) is not None:
            done.put((task, self._ask(place, {**task, "device": self.devices[place]})))
        if place in self.workers:
            self._end(place)

    def _ask(self, place: int, task: Task) -> Answer:
        if time.monotonic() > self.until:
            return {"state": NOT_RUN}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.ask(place, task)
            except Lost as error:
                told = str(error)
            if self.stopped:
                break
            if attempt < ATTEMPTS:
                self.say(f"a worker is lost, and its task is done again: {told}")
        return {"state": "failed", "error": told, "lost": True}

    def ask(self, place: int, task: Task) -> Answer:
        """The answer of this worker, which is started if necessary."""
        with self.lock:
            if self.stopped:
                raise Lost("interrupted")
            if place not in self.workers:
                self.workers[place] = self._start()
            worker = self.workers[place]
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except (OSError, ValueError):  # the worker is gone, or this process is ending
            line = ""
        if line:
            return json.loads(line)
        code = _reap(worker)
        with self.lock:
            self.workers.pop(place, None)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise Lost(f"its process {how}; see {self.log}")

    def stop(self) -> None:
        """End every worker; one in the middle of a run saves a checkpoint first."""
        with self.lock:
            self.stopped = True
            for worker in self.workers.values():
                _hang_up(worker)

    def _end(self, place: int) -> None:
        with self.lock:
            worker = self.workers.pop(place)
            _hang_up(worker)
        _reap(worker)

    def _start(self) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        environment |= {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        with open(self.log, "a") as log:
            # A session of its own, so that Ctrl-C reaches only this process, which then ends the workers.
            return subprocess.Popen(
                [sys.executable, "-m", self.module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment, start_new_session=True,
            )  # fmt: skip


def _hang_up(worker: subprocess.Popen[str]) -> None:
    """Close its input, at which a worker ends."""
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # already gone
        worker.stdin.close()


def _reap(worker: subprocess.Popen[str]) -> int:
    assert worker.stdout is not None
    code = worker.wait()
    worker.stdout.close()
    return code


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # the main thread, which alone may set handlers, decides
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_out(asked: str | None, jobs: int | None, most: int, side_by_side: int = 4) -> tuple[list[str], int]:
    """(a device for each worker, threads of each). One worker per core of a CPU, several per GPU, because small models leave it idle."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked is None and gpus:
        places = [f"cuda:{place}" for place in range(gpus)]
    else:
        places = [asked or "cpu"]
    usual = cores() if places == ["cpu"] else min(side_by_side * len(places), cores())
    count = max(1, min(jobs or usual, most))
    return [places[i % len(places)] for i in range(count)], max(1, cores() // count)
