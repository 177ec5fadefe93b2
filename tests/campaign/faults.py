"""Faults that a child brings upon itself: an end at the k-th file operation or at a stage of a checkpoint, a full disk, a power cut that
drops what was not synced."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPERATIONS = ("fsync", "replace", "rename", "unlink", "mkdir")


def count_operations(note: Path) -> None:
    """At the end of this process, the number of its file operations is written to a file."""
    count, end = 0, os._exit

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            return real(*given, **named)

        return call

    def ended(code: int) -> None:
        note.write_text(str(count))
        end(code)

    for name in OPERATIONS:
        setattr(os, name, watched(getattr(os, name)))
    os._exit = ended  # type: ignore[assignment]


def note_training(note: Path) -> None:
    """If this process trains, its number is added to a file."""
    from tokmix.training import loop

    real = loop.train

    def train(engines: Any) -> None:
        with open(note, "a") as file:
            file.write(f"{os.getpid()}\n")
        real(engines)

    loop.train = train


def end_at(k: int) -> None:
    """SIGKILL at the k-th file operation of this process, before or after it."""
    count = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == k and k % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*given, **named)
            if count == k:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in OPERATIONS:
        setattr(os, name, watched(getattr(os, name)))


def full_disk(size: int) -> None:
    """No file may grow beyond `size`, which is how a full disk looks from inside."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class CheckpointFault:
    """At the k-th operation of this process in a folder of checkpoints: SIGKILL before or after it, or (full) the disk is full from then
    on. Writing the file counts as one: a part of it is there then. A write begins late, so that steps go on meanwhile."""

    def __init__(self, k: int, full: bool, share: float, note: Path):
        """share: of a file that is cut short, how much is there; note: a file for the name of the stage."""
        self.k, self.full, self.share, self.note, self.count = k, full, share, note, 0
        self.lock = threading.RLock()

    def arm(self) -> None:
        import safetensors.torch

        for name in (*OPERATIONS, "rmdir"):
            setattr(os, name, self._watched(name, getattr(os, name)))
        safetensors.torch.save_file = self._late(safetensors.torch.save_file)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{given[0]}") if name == "fsync" else str(given[0])
            if named.get("dir_fd") is not None:
                place = os.readlink(f"/proc/self/fd/{named['dir_fd']}")
            if "/checkpoints" not in place:
                return real(*given, **named)
            with self.lock:
                if self._is_it(name not in ("unlink", "rmdir")) and (self.full or self.k % 2):
                    self._strike(f"before {name}")
                result = real(*given, **named)
                if self.count == self.k and not self.full:
                    self._strike(f"after {name}")
                return result

        return call

    def _late(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def save_file(tensors: Any, path: Any, metadata: Any = None) -> None:
            if "/checkpoints" not in str(path):
                real(tensors, path, metadata)
                return
            time.sleep(0.05)
            with self.lock:
                struck = self._is_it(True)
                real(tensors, path, metadata)
                if struck:
                    os.truncate(path, int(self.share * os.path.getsize(path)))
                    self._strike("within a file")

        return save_file

    def _is_it(self, takes_room: bool) -> bool:
        if self.full and not takes_room:
            return False
        self.count += 1
        return self.count >= self.k if self.full else self.count == self.k

    def _strike(self, stage: str) -> None:
        if not self.note.exists():
            self.note.write_text(stage)
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.SIGKILL)


class PowerCut:
    """Watches what was synced. At the k-th operation, or when the process has ended, the power is cut: files keep what they had at their
    last fsync, or a part of the rest, or zeros in its place; renames and removals whose folder was not synced are undone from some point
    on."""

    def __init__(self, root: Path, k: int, seed: int):
        self.root, self.k, self.draw, self.count = root, k, random.Random(seed), 0
        self.synced: dict[int, bytes] = {}  # inode -> content on the disk
        self.undo: list[tuple[set[str], Callable[[], None]]] = []  # (folders whose sync makes it last, how to take it back)
        self.real, self.end = {name: getattr(os, name) for name in OPERATIONS}, os._exit
        self.lock = threading.RLock()  # checkpoints are written by a thread
        for path in root.rglob("*"):
            if path.is_file():
                self.synced[path.stat().st_ino] = path.read_bytes()

    def arm(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._watched(name))
        os._exit = self._ended  # type: ignore[assignment]

    def _ended(self, code: int) -> None:
        with self.lock:
            self.lose()
        self.end(code)

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with self.lock:
                self.count += 1
                if self.count >= self.k:
                    self.lose()
                    os.kill(os.getpid(), signal.SIGKILL)
                if named.get("dir_fd") is None:
                    getattr(self, f"_{name}")(*given)
                return self.real[name](*given, **named)

        return call

    def _fsync(self, handle: int) -> None:
        known = os.fstat(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        if stat.S_ISDIR(known.st_mode):
            self.undo = [(folders - {path}, back) for folders, back in self.undo if folders - {path}]
        else:
            self.synced[known.st_ino] = Path(path).read_bytes()

    def _rename(self, old: Any, new: Any) -> None:
        source, target = Path(os.path.abspath(old)), Path(os.path.abspath(new))
        before = target.read_bytes() if target.is_file() else None

        def back() -> None:
            if target.exists():
                self.real["rename"](target, source)
            if before is not None:
                target.write_bytes(before)
                self.synced[target.stat().st_ino] = before

        self.undo.append(({str(target.parent)}, back))

    _replace = _rename

    def _unlink(self, path: Any) -> None:
        place = Path(os.path.abspath(path))
        before = place.read_bytes() if place.is_file() else b""

        def back() -> None:
            if place.parent.is_dir():
                place.write_bytes(before)
                self.synced[place.stat().st_ino] = before

        self.undo.append(({str(place.parent)}, back))

    def _mkdir(self, *given: Any) -> None:
        pass

    def lose(self) -> None:
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                now, kept = path.read_bytes(), self.synced.get(path.stat().st_ino, b"")
                if now != kept:
                    path.write_bytes(self._after(now, kept))
        last = self.draw.randint(0, len(self.undo))
        for _, back in reversed(self.undo[last:]):
            back()

    def _after(self, now: bytes, kept: bytes) -> bytes:
        part = now[: self.draw.randint(min(len(kept), len(now)), len(now))]
        zeros = now[: len(kept)] + b"\0" * max(0, len(now) - len(kept))
        return self.draw.choice([kept, part, zeros, now])
