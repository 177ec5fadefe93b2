"""Commands in forked children of a process that has imported everything: a trial takes a second, and can be killed for real."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 120.0  # seconds after which a child counts as hanging


@dataclass
class Tally:
    """tried = held + clean + wrong. held: the right result; clean: one line of error and nothing changed; wrong: anything else."""

    name: str
    tried: int = 0
    held: int = 0
    clean: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)

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
        end = time.monotonic() + limit
        while time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        self.kill()
        os.waitpid(self.pid, 0)
        return -99

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def said(self) -> str:
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""


def start(errors: Path, act: Callable[[], int]) -> Child:
    """act() in a child; what it and the libraries say on standard error goes to a file."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, errors)
    code = 70
    try:
        for place, name in ((1, os.devnull), (2, str(errors))):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), place)
        sys.stdout, sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb")), os.fdopen(2, "w", buffering=1)
        code = act()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def verdict(code: int, said: str, right: bool) -> str:
    """Of a child that ended by itself."""
    if code == 0:
        return "held" if right else "wrong"
    lines = [line for line in said.splitlines() if line.startswith("tokmix ")]
    return "clean" if code in (1, 2) and len(lines) == 1 and "Traceback" not in said else "wrong"
