"""Checkpoints: one safetensors file each, whole or not there, never a pickle.

    checkpoints/step-00000120.safetensors    weights., first., second. (the optimizer's moments), best. (the best weights so far)
                                             and, in the header, what is not a tensor, as JSON

A checkpoint is written under another name, flushed to the disk and renamed: a process killed in between leaves a file that
nobody reads. The last two are kept, so that there is one to go back to should the newest prove damaged.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from tokmix.core.optional import need
from tokmix.runs.files import out_of_space, sync_folder

FORMAT = "tokmix-checkpoint"
VERSION = 1
KEPT = 2


class Checkpoints:
    def __init__(self, folder: Path):
        self.folder = folder

    def files(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    @property
    def last(self) -> Path | None:
        return self.files()[-1] if self.files() else None

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.safetensors"
        save_tensors(path, tensors, {"format": FORMAT, "version": str(VERSION), "state": json.dumps(state)})
        for old in self.files()[:-KEPT]:
            old.unlink()
        return path

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest that can be read; None where there is none."""
        for path in self.folder.glob("*.partial"):
            path.unlink()
        problem = None
        for path in reversed(self.files()):
            try:
                return self._read(path)
            except (ValueError, OSError) as error:
                problem = problem or error
        if problem is not None:
            raise ValueError(f"no checkpoint in {self.folder} can be read: {problem}")
        return None

    def _read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, notes = load_tensors(path)
        if notes.get("format") != FORMAT or notes.get("version") != str(VERSION):
            raise ValueError(f"{path} is {notes.get('format')!r} of version {notes.get('version')!r}; this tokmix reads version {VERSION}")
        return tensors, json.loads(notes["state"])


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """The file appears complete or not at all."""
    safe = need("safetensors.torch", "saving a model")
    partial = path.with_name(path.name + ".partial")
    try:
        safe.save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial, notes)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
        sync_folder(path.parent)
    except Exception as error:
        partial.unlink(missing_ok=True)
        if out_of_space(error):
            raise OSError(errno.ENOSPC, f"no space left for {path}; what was saved before is untouched") from None
        raise


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, notes of the header); a damaged file is a ValueError."""
    safe = need("safetensors", "loading a model")
    try:
        with safe.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except safe.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}") from None
