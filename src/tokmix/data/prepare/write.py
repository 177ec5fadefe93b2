"""Writing token files (their layout is drawn in tokens.py)."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tokmix.core.optional import np
from tokmix.data.card import FileFacts, SplitCard, length_facts
from tokmix.data.tokens import TARGETS, shard_name

SHARD_TOKENS = 2**27  # 256 MiB of uint16


class _File:
    """A file being written, hashed on the way."""

    def __init__(self, path: Path):
        self.path, self.size, self.digest = path, 0, hashlib.sha256()
        self.file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()

    def write(self, array: np.ndarray) -> None:
        data = array.tobytes()
        self.file.write(data)
        self.digest.update(data)
        self.size += len(data)

    def close(self) -> FileFacts:
        self.file.flush()
        os.fsync(self.file.fileno())  # before the rename that makes the folder valid: see folder.py
        self.file.close()
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


class SplitWriter:
    """One split's rows, in the order they come."""

    FLUSH = 2**20  # ids held in memory before they are written

    def __init__(
        self, folder: Path, name: str, task: str, dtype: str, shard_tokens: int = SHARD_TOKENS, groups: bool = False,
        weights: bool = False,
    ):  # fmt: skip
        self.folder, self.name, self.dtype, self.shard_tokens = folder, name, dtype, shard_tokens
        self.rows = self.tokens = self.bytes = self.truncated = 0
        self.lengths: Counter[int] = Counter()
        self.files: dict[str, FileFacts] = {}
        self._ids: list[np.ndarray] = []
        self._held = 0
        self._shard: _File | None = None
        self._room = 0
        self._columns = {"offsets": _Column(self, "offsets", "int64"), "keys": _Column(self, "keys", "uint64")}
        if task in TARGETS:
            self._columns["targets"] = _Column(self, "targets", TARGETS[task])
        if groups:
            self._columns["groups"] = _Column(self, "groups", "uint64")
        if weights:
            self._columns["weights"] = _Column(self, "weights", "float32")
        self._columns["offsets"].add(0)
        self._open = 0  # ids of the row that is still being added to

    def extend(self, ids: np.ndarray) -> None:
        """More ids for the row at hand."""
        self._ids.append(ids)
        self._held += len(ids)
        self._open += len(ids)
        if self._held >= self.FLUSH:
            self._flush()

    def end_row(self, key: int, target: Sequence[float] = (), group: int | None = None, weight: float | None = None) -> None:
        self.rows += 1
        self.tokens += self._open
        self.lengths[self._open] += 1
        self._open = 0
        self._columns["offsets"].add(self.tokens)
        self._columns["keys"].add(key)
        for value in target:
            self._columns["targets"].add(value)
        if group is not None:
            self._columns["groups"].add(group)
        if weight is not None:
            self._columns["weights"].add(weight)

    def _flush(self) -> None:
        if not self._ids:
            return
        ids = np.concatenate(self._ids).astype(self.dtype)
        self._ids, self._held = [], 0
        while len(ids):
            if self._room == 0:
                self._next_shard()
            assert self._shard is not None
            self._shard.write(ids[: self._room])
            taken = min(self._room, len(ids))
            self._room -= taken
            ids = ids[taken:]

    def _next_shard(self) -> None:
        self._close_shard()
        self._shard = _File(self.folder / shard_name(self.name, sum(name.endswith(".tokens.bin") for name in self.files)))
        self._room = self.shard_tokens

    def _close_shard(self) -> None:
        if self._shard is not None:
            self.files[self._shard.path.name] = self._shard.close()
            self._shard = None

    def abandon(self) -> None:
        """Let go of the files, whatever is in them; nothing to do after close()."""
        for file in [*(column.file for column in self._columns.values()), *([self._shard] if self._shard else [])]:
            with contextlib.suppress(OSError):  # a full disk refuses the last buffer once more
                file.file.close()

    def close(self) -> SplitCard:
        assert self._open == 0, "the last row was not ended"
        self._flush()
        self._close_shard()
        for column in self._columns.values():
            self.files[column.file.path.name] = column.close()
        return SplitCard(self.rows, self.tokens, self.bytes, length_facts(self.lengths), truncated=self.truncated, files=self.files)


class _Column:
    """Numbers of one kind, one or so a row."""

    def __init__(self, writer: SplitWriter, kind: str, dtype: str):
        self.file = _File(writer.folder / f"{writer.name}.{kind}.bin")
        self.dtype, self.held = dtype, list[float]()

    def add(self, value: float) -> None:
        self.held.append(value)
        if len(self.held) >= 2**16:
            self._flush()

    def _flush(self) -> None:
        self.file.write(np.array(self.held, dtype=self.dtype))
        self.held = []

    def close(self) -> FileFacts:
        self._flush()
        return self.file.close()
