"""Checkpoints: one safetensors file each, whole or not there, never a pickle.

    checkpoints/step-00000120.safetensors    weights., first., second. (the optimizer's moments), best. (the best weights so far)
                                             and, in the header, what is not a tensor, as JSON, and a checksum of everything

A checkpoint is written under another name, flushed to the disk and renamed: a process killed in between leaves a file that
nobody reads. The last few are kept, so that there is one to go back to should the newest prove damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokmix.core.optional import need
from tokmix.runs.files import Damaged, remove_partial, replacing

FORMAT = "tokmix-checkpoint"
VERSION = 2  # 1: the same without a checksum
KEPT = 2
CHECKSUM = "sha256"


@dataclass(frozen=True)
class Header:
    """What a checkpoint holds beside tensors."""

    state: dict[str, Any]
    version: int = VERSION
    format: str = FORMAT

    def notes(self) -> dict[str, str]:
        return {"format": self.format, "version": str(self.version), "state": json.dumps(self.state)}

    @classmethod
    def read(cls, notes: Mapping[str, str], path: Path) -> Header:
        """Damaged where it cannot be read, or where a checksum should be and is not."""
        format, version = notes.get("format"), notes.get("version")
        if format != FORMAT or version not in ("1", str(VERSION)):
            raise Damaged(f"{path} is {format!r} of version {version!r}; this tokmix reads version {VERSION}")
        if version == str(VERSION) and CHECKSUM not in notes:
            raise Damaged(f"{path} is damaged: it has no checksum")
        try:
            state = json.loads(notes["state"])
        except (KeyError, ValueError, RecursionError) as error:
            raise Damaged(f"{path} is damaged: its header cannot be read ({error})") from None
        if not isinstance(state, dict):
            raise Damaged(f"{path} is damaged: its header does not hold an object")
        return cls(state, int(version))


class Checkpoints:
    def __init__(self, folder: Path, keep: int = KEPT):
        self.folder, self.keep = folder, keep
        self.passed_over: list[str] = []  # why files newer than the one loaded were not

    def files(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("step-*.safetensors"))

    @property
    def last(self) -> Path | None:
        return self.files()[-1] if self.files() else None

    def clear(self) -> None:
        """Remove what killed writers left, ours and the tensor library's. Only for the owner of the run."""
        remove_partial(self.folder)
        for pattern in ("*.partial", ".tmp*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
        path = self.folder / f"step-{step:08d}.safetensors"
        save_tensors(path, tensors, Header(state).notes())
        files = self.files()
        for old in [*files[: files.index(path)][: -self.keep + 1 or None], *files[files.index(path) + 1 :]]:  # later ones were passed over
            old.unlink()
        return path

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest that can be read; None where there is none."""
        self.passed_over = []
        for path in reversed(self.files()):
            try:
                tensors, notes = load_tensors(path)
                return tensors, Header.read(notes, path).state
            except (ValueError, OSError) as error:
                self.passed_over.append(str(error))
        if self.passed_over:
            raise Damaged(f"no checkpoint in {self.folder} can be read: {self.passed_over[0]}")
        return None


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """The file appears complete or not at all; its header has a checksum of the tensors and the notes."""
    safe = need("safetensors.torch", "saving a model")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        safe.save_file(whole, partial, notes | {CHECKSUM: checksum(whole, notes)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, notes of the header); a damaged file is a ValueError. A checksum is compared where there is one."""
    safe = need("safetensors", "loading a model")
    try:
        with safe.safe_open(path, "pt") as file:
            tensors, notes = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except safe.SafetensorError as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from None
    if CHECKSUM in notes and notes[CHECKSUM] != checksum(tensors, notes):
        raise Damaged(f"{path} is damaged: its content has changed")
    return tensors, notes


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Of the tensors of a file, read from its header alone."""
    safe = need("safetensors", "loading a model")
    try:
        with safe.safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except safe.SafetensorError as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from None


def checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Of names, types, shapes and every byte, and of the notes but the checksum itself."""
    digest = hashlib.sha256(json.dumps([one for one in sorted(notes.items()) if one[0] != CHECKSUM]).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
