"""Locks on files, which the operating system lets go the moment their process ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError as error:  # pragma: no cover - not a Unix
    raise ImportError("tokmix tune needs a Unix: it tells living workers from dead ones by file locks") from error


class Held:
    """A lock that this process has; it ends with `release`, or with the process."""

    def __init__(self, handle: int):
        self.handle = handle

    def release(self) -> None:
        os.close(self.handle)


def take(path: Path, wait: bool = False) -> Held | None:
    """The lock on a file, made where it is missing; None where another process has it and we do not wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return Held(handle)


def is_held(path: Path) -> bool:
    """Whether a living process has the lock."""
    lock = take(path)
    if lock is not None:
        lock.release()
    return lock is None


@contextmanager
def holding(path: Path) -> Iterator[None]:
    lock = take(path, wait=True)
    assert lock is not None
    try:
        yield
    finally:
        lock.release()


class JournalLock:
    """For Optuna's journal. Its own locks are files that outlive a killed process and hold up everybody for half a minute; and a
    line that a crash cut short would make the whole journal unreadable, so it is taken away before the next one is written."""

    def __init__(self, journal: Path):
        self.journal, self.path = journal, journal.with_name(journal.name + ".lock")
        self.held: Held | None = None

    def acquire(self) -> bool:
        self.held = take(self.path, wait=True)
        _mend(self.journal)
        return True

    def release(self) -> None:
        assert self.held is not None
        self.held.release()
        self.held = None


def _mend(journal: Path) -> None:
    with open(journal, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
