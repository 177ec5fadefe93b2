"""Workers as processes of their own: started, replaced where one dies, asked to end when we are."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tokmix.study.tune.worker import Job, job_line

REPLACED = 3  # times the number of workers, at most


class Crew:
    def __init__(self, jobs: list[Job]):
        self.jobs, self.replaced = jobs, 0
        self.started: list[tuple[Job, subprocess.Popen[str]]] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Until all have ended. What stopped one is told when the others have done what they could."""
        with _ending_as_interrupt():
            self._run()
        if self.problems:
            raise ValueError(self.problems[0])

    def _run(self) -> None:
        try:
            self.started = [(job, _start(job)) for job in self.jobs]
            while self.started:
                time.sleep(0.1)
                self._look()
        except BaseException:
            self._end()
            raise

    def _look(self) -> None:
        for job, process in [one for one in self.started if one[1].poll() is not None]:
            self.started.remove((job, process))
            said = _said(process)
            if process.returncode == 0:
                continue
            if process.returncode > 0:
                self.problems.append(said.splitlines()[-1] if said else f"a worker ended with code {process.returncode}")
            elif self.replaced < REPLACED * len(self.jobs):
                self.replaced += 1
                print(f"a worker died ({_name(-process.returncode)}): its trial is run again", file=sys.stderr, flush=True)
                self.started.append((job, _start(job)))
            else:
                self.problems.append(f"workers die again and again ({_name(-process.returncode)})")

    def _end(self) -> None:
        """Each saves its trial and gives it back; a second Ctrl-C does not wait for that."""
        for _, process in self.started:
            process.send_signal(signal.SIGINT)
        try:
            for _, process in self.started:
                process.wait()
        except KeyboardInterrupt:
            for _, process in self.started:
                process.kill()
        for _, process in self.started:
            process.wait()
            _said(process)


def _start(job: Job) -> subprocess.Popen[str]:
    """In a session of its own: a Ctrl-C of the terminal comes to us alone, and each worker hears of it once."""
    command = [sys.executable, "-m", "tokmix.study.tune.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    try:
        process.stdin.write(job_line(job))
        process.stdin.close()
    except BrokenPipeError:  # it died at once: that is seen at the next look
        pass
    return process


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with process.stdout as file:
        return file.read().strip()


@contextmanager
def _ending_as_interrupt() -> Iterator[None]:
    """A request to end (SIGTERM) is taken as Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():  # whoever owns that one decides
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
