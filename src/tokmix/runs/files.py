"""A folder that appears complete or not at all, whatever kills the process that fills it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that appears under its name complete or not at all: it is filled beside `out` and renamed at the end."""
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    partial.mkdir()
    lock = _lock(partial)
    try:
        yield partial
        sync_folder(partial)
        check_free(out)
        partial.rename(out)
        sync_folder(out.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if out_of_space(error):
            raise OSError(errno.ENOSPC, f"no space left for {out}; what was written of it has been removed") from None
        raise
    finally:
        if lock is not None:
            os.close(lock)


def check_free(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists already; nothing is overwritten: name another folder, or remove it")
    for above in out.parents:
        if above.exists():
            if not above.is_dir():
                raise ValueError(f"{out} cannot be made: {above} is a file")
            return


def out_of_space(error: BaseException) -> bool:
    """Also where a library says it in words of its own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def write_text(path: Path, text: str) -> None:
    """Text on disk, not only in a buffer: the rename that makes a folder valid must not overtake its content."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """The whole file or none: who reads it never meets a half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write_text(partial, json.dumps(content, indent=1) + "\n")
    partial.rename(path)


def _lock(partial: Path) -> int | None:
    """A lock on the folder itself, held as long as the process lives, however it ends: tells a folder in the making
    from an abandoned one."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - not a Unix: abandoned folders stay
        return None
    try:
        handle = os.open(partial, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_abandoned(out: Path) -> None:
    for partial in out.parent.glob(f".{out.name}.partial-*"):
        handle = _lock(partial)
        if handle is not None:
            if not _alive(partial.name.rpartition("-")[2]):  # a living process may be just about to take the lock
                shutil.rmtree(partial, ignore_errors=True)
            os.close(handle)


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # pragma: no cover - not a Unix
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
