"""Commands in forked children of a process that has imported everything: a trial takes a second, and can be killed for real."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Seconds after which a child counts as hanging. Those in which it waited for a processor do not count, nor those of its workers. Those
# of another rank do.
LIMIT = 300.0


@dataclass
class Tally:
    """tried = held + clean + wrong. held: the right result; clean: one line of an expected error and nothing changed; wrong: anything
    else."""

    name: str
    part: str = ""
    tried: int = 0
    held: int = 0
    clean: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)
    stages: dict[str, int] = field(default_factory=dict)  # where a fault struck, and how often, for parts that choose it

    def merge(self, other: Tally) -> None:
        for name in ("tried", "held", "clean", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes += other.notes
        for stage, count in sorted(other.stages.items()):
            self.stages[stage] = self.stages.get(stage, 0) + count

    def add(self, verdict: str, note: str = "") -> None:
        self.tried += 1
        setattr(self, verdict, getattr(self, verdict) + 1)
        if verdict == "wrong":
            self.notes.append(note[:300])
            print(f"  wrong: {note[:300]}", flush=True)

    def line(self) -> str:
        return f"{self.name:44} tried {self.tried:5}  held {self.held:5}  clean error {self.clean:4}  wrong {self.wrong:3}"


@dataclass
class Child:
    pid: int
    errors: Path

    def wait(self, limit: float = LIMIT) -> int:
        """The exit code, or minus the signal; -99 where it had to be ended for hanging."""
        began, waited, looked = time.monotonic(), 0.0, time.monotonic()
        while time.monotonic() - began - waited < limit:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() - looked > 1:
                waited, looked = self._waited(), time.monotonic()
            time.sleep(0.005)
        self.kill()
        os.waitpid(self.pid, 0)
        return -99

    def ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _waited(self) -> float:
        """Seconds it or the processes that it started were ready and had no processor, on a busy machine most of the time."""
        found = 0.0
        for pid in (self.pid, *self._started()):
            with contextlib.suppress(OSError, IndexError, ValueError):
                found += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
        return found

    def kill(self, workers: bool = False) -> None:
        """workers: and the processes that it started."""
        for pid in (self.pid, *(self._started() if workers else ())):  # it goes first, so that it sees no worker die
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def _started(self) -> list[int]:
        found = []
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):  # by its threads
            with contextlib.suppress(OSError):  # that thread has ended
                found += [int(pid) for pid in children.read_text().split()]
        return found

    def said(self) -> str:
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""


def start(errors: Path, act: Callable[[], int], quiet: bool = True) -> Child:
    """act() in a child; what it and the libraries say on standard error goes to a file. quiet: standard output is dropped."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, errors)
    code = 70
    try:
        for place, name in ((1, os.devnull if quiet else None), (2, str(errors))):
            if name is not None:
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), place)
        # closefd: children of children replace these in turn, and what they replace must not close theirs
        sys.stdout, sys.stderr = (open(place, "w", buffering=1, closefd=False) for place in (1, 2))  # noqa: SIM115
        code = act()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def verdict(code: int, said: str, right: bool) -> str:
    """Of a child that ended by itself. The last-resort line for errors that nobody expected is wrong, and so is the traceback of a thread
    in a command that ends well."""
    if code == 0:
        return "held" if right and "Traceback" not in said else "wrong"
    lines = [line for line in said.splitlines() if line.startswith("tokmix")]
    odd = any(words in said for words in ("Traceback", "unexpected error"))
    return "clean" if code in (1, 2) and len(lines) == 1 and not odd else "wrong"
