"""Faults that a child brings upon itself: an end at the k-th file operation, a full disk, a power cut that drops what was not synced."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPERATIONS = ("fsync", "replace", "rename", "unlink", "mkdir")


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


class PowerCut:
    """Watches what was synced. At the k-th operation the power is cut: files keep what they had at their last fsync, or a part of the
    rest, or zeros in its place; renames and removals whose folder was not synced are undone from some point on."""

    def __init__(self, root: Path, k: int, seed: int):
        self.root, self.k, self.draw, self.count = root, k, random.Random(seed), 0
        self.synced: dict[int, bytes] = {}  # inode -> content on the disk
        self.undo: list[tuple[set[str], Callable[[], None]]] = []  # (folders whose sync makes it last, how to take it back)
        self.real = {name: getattr(os, name) for name in OPERATIONS}
        for path in root.rglob("*"):
            if path.is_file():
                self.synced[path.stat().st_ino] = path.read_bytes()

    def arm(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._watched(name))

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self.count >= self.k:
                self.cut()
            if "dir_fd" in named and named["dir_fd"] is not None:
                return self.real[name](*given, **named)
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

    def cut(self) -> None:
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                now, kept = path.read_bytes(), self.synced.get(path.stat().st_ino, b"")
                if now != kept:
                    path.write_bytes(self._after(now, kept))
        last = self.draw.randint(0, len(self.undo))
        for _, back in reversed(self.undo[last:]):
            back()
        os.kill(os.getpid(), signal.SIGKILL)

    def _after(self, now: bytes, kept: bytes) -> bytes:
        part = now[: self.draw.randint(min(len(kept), len(now)), len(now))]
        zeros = now[: len(kept)] + b"\0" * max(0, len(now) - len(kept))
        return self.draw.choice([kept, part, zeros, now])
