"""Locks on files, which the operating system releases when their process ends in any way."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - not a Unix
    fcntl = None  # type: ignore[assignment]

RUN_LOCK = ".lock"


class Held:
    """A lock of this process; it ends with `release`, or with the process."""

    def __init__(self, handle: int):
        self.handle = handle

    def release(self) -> None:
        os.close(self.handle)


def take(path: Path, wait: bool = False) -> Held | None:
    """Lock a file, which is made if missing; None if another process has the lock and we do not wait."""
    if fcntl is None:  # pragma: no cover - not a Unix
        raise ImportError("tokmix needs a Unix here: it tells living processes from dead ones by file locks")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return Held(handle) if _flock(handle, wait) else None


def _flock(handle: int, wait: bool = False) -> bool:
    """False, with the handle closed, if another process has the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    except BaseException:
        os.close(handle)
        raise
    return True


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


@contextmanager
def owning(folder: Path) -> Iterator[None]:
    """Inside the block, this process owns the folder. ValueError names another owner.

    The folder is made if missing. Its lock file names the owner and is removed with the lock."""
    path = folder / RUN_LOCK
    while True:
        try:
            lock = take(path)
        except FileNotFoundError:  # another process removed the folder before the lock was made
            continue
        if lock is None:
            raise ValueError(f"{folder} is in use by {_owner(path)}: wait until it has ended, or name another folder")
        if _names(path, lock.handle):
            break
        lock.release()  # the owner before us removed its lock file, or the whole folder, while we opened it
    try:
        told = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(lock.handle, 0)
        os.pwrite(lock.handle, json.dumps(told).encode(), 0)
        yield
    finally:
        if _names(path, lock.handle):
            path.unlink(missing_ok=True)
        lock.release()


def _names(path: Path, handle: int) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f"process {told['process']} on {told['host']} since {told['since']}"
    except (OSError, ValueError, TypeError, KeyError):  # it is being written, or gone
        return "another process"


def lock_path(path: Path) -> Held | None:
    """Lock a file or folder itself; None if another process has the lock, or it is gone. OSError if the system has no locks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not _flock(handle):
        return None
    if _names(path, handle):
        return Held(handle)
    os.close(handle)
    return None


class JournalLock:
    """For Optuna's journal. Optuna's own locks are files that survive a killed process and block all others for half a minute. A line
    that a crash cut off would make the journal unreadable, so it is removed before the next one is written."""

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
