"""Runs on the workers of a Dask cluster, `--on tcp://host:8786`: on all hosts that have joined.

    dask scheduler                                        # on one host
    dask worker tcp://host:8786 --nthreads 1              # on each host, once per GPU; tokmix has to be installed there

A task takes the same way as on one machine: the cluster's worker starts a process and feeds it (pool.py), so a crash of torch or a lack
of memory takes no worker of the cluster with it. Where a worker or its process is lost, the task is done again by another one; a run
goes on from its last checkpoint, since the folder is one that all hosts share.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.runs.pool import ATTEMPTS, Answer, Lost, More, Pool, Report, Say, Task, sigterm_interrupts

if TYPE_CHECKING:
    from distributed import Client, Future

PATIENCE = 20  # seconds for the scheduler to answer

_pools: dict[str, Pool] = {}  # in a worker of the cluster: by study
_lock = threading.Lock()


class ClusterPool:
    """Like pool.Pool. ValueError if no scheduler answers."""

    def __init__(self, address: str, device: str | None, threads: int, log: Path, module: str, say: Say = lambda line: None):
        """device: None for the first GPU that a worker sees, else its CPU; threads: of torch in each process; log: in a
        folder that all hosts share; module: that a process runs."""
        self.address, self.device, self.threads, self.log, self.module = address, device, threads, log.resolve(), module
        self.client = _connect(address)
        self.size = len(self.client.scheduler_info(n_workers=-1)["workers"])  # more may join
        there = f"{self.size} worker{'s' * (self.size != 1)} on {address}"
        say(there if self.size else f"{there}: waiting for `dask worker {address} --nthreads 1`")

    def run(self, tasks: Sequence[Task], report: Report, more: More = tuple) -> None:
        from distributed import as_completed

        self.log.parent.mkdir(parents=True, exist_ok=True)
        open_tasks: dict[Future, Task] = {}
        try:
            with sigterm_interrupts():
                open_tasks = {self._submit(task, 0): task for task in tasks}
                finished = as_completed(list(open_tasks), loop=self.client.loop)
                for future in finished:
                    task = open_tasks.pop(future)
                    report(task, self._answer(future))
                    for new in more():
                        made = self._submit(new, 1)  # before waiting tasks, so that begun work is finished first
                        open_tasks[made] = new
                        finished.add(made)
        finally:
            self.client.cancel(list(open_tasks))
            self.client.run(_stop, str(self.log))
            self.client.close()

    def _submit(self, task: Task, priority: int) -> Future:
        given = (str(self.log), self.threads, self.module, {**task, "device": self.device})
        return self.client.submit(_do, *given, pure=False, retries=ATTEMPTS - 1, priority=priority)

    def _answer(self, future: Future) -> Answer:
        from distributed import KilledWorker

        error = future.exception()
        if error is None:
            return dict(future.result())
        told = " ".join(str(error).split())
        lost = isinstance(error, (Lost, KilledWorker))
        return {"state": "failed", "error": told if isinstance(error, Lost) else f"{type(error).__name__}: {told}", "lost": lost}


def _connect(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError:
        raise ImportError("--on needs the package distributed: pip install 'tokmix[cluster]'") from None
    try:
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        told = " ".join(str(error).split())[:200]
        raise ValueError(f"--on {address}: no Dask scheduler answers there ({told}); start one with `dask scheduler`") from None


def _do(study: str, threads: int, module: str, task: Task) -> Answer:
    """Run in a worker of the cluster. Lost if its process is lost; the cluster then repeats the task."""
    if not Path(study).parent.is_dir():
        raise FileNotFoundError(f"{socket.gethostname()} does not see {Path(study).parent}: --out has to be a folder that all hosts share")
    with _lock:
        pool = _pools.setdefault(study, Pool([], threads, Path(study), module))
    return pool.ask(threading.get_ident(), task)


def _stop(study: str) -> None:
    with _lock:
        pool = _pools.pop(study, None)
    if pool is not None:
        pool.stop()
