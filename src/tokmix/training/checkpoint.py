"""Checkpoints: whole or not there, never a pickle.

    checkpoints/step-00000120.safetensors    of one process: weights., first., second. (the optimizer's moments), best. (the best
                                             weights so far) and, in the header, what is not a tensor, as JSON, and a checksum
    checkpoints/step-00000120/               of several processes, a part by each: see checkpoint_parts.py

`begin` copies the tensors to host memory. A thread writes the copy while training goes on: under another name, flushed to the disk,
then renamed. A process killed in between leaves a file that nobody reads. The last few checkpoints are kept, so there is one to go
back to where the newest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokmix.core.optional import need
from tokmix.runs.files import PARTIAL, Damaged, remove_partial, replacing, sync_file, sync_folder
from tokmix.training.distributed import World

if TYPE_CHECKING:
    from tokmix.training.checkpoint_parts import Part

FORMAT = "tokmix-checkpoint"
VERSION = 2  # 1: the same without a checksum
KEPT = 2
LOG = "log.jsonl"  # next to the folder of checkpoints
CHECKSUM = "sha256"
NAME = re.compile(r"step-(\d+)(\.safetensors)?")
LayOut = Callable[[Tensor, Tensor], Tensor]  # (tensor of this process, full tensor) -> what of it this process keeps


@dataclass(frozen=True)
class Header:
    """What the file of one process holds beside tensors."""

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


class Stored:
    """A checkpoint that was found whole."""

    checked = True  # by a checksum

    def __init__(self, path: Path, state: dict[str, Any], shapes: dict[str, torch.Size], types: dict[str, torch.dtype]):
        self.path, self.state, self.shapes, self.types = path, state, shapes, types

    def read(self, into: dict[str, Tensor], lay_out: LayOut) -> None:
        """Fill the tensors, in place. They have the names of the checkpoint's."""
        missing = [name for name in into if name not in self.shapes] + [name for name in self.shapes if name not in into]
        if missing:
            raise Damaged(f"{self.path} does not belong to this run: only one of the two has {missing[0]!r}")
        for name, tensor in into.items():
            if tensor.shape != self.shapes[name]:
                raise Damaged(f"{self.path} does not belong to this run: {name} is {list(self.shapes[name])}, not {list(tensor.shape)}")
        with torch.no_grad():
            self._fill(into, lay_out)

    def _fill(self, into: dict[str, Tensor], lay_out: LayOut) -> None:
        raise NotImplementedError


class StoredFile(Stored):
    """By one process."""

    def __init__(self, path: Path):
        self.tensors, notes = load_tensors(path)
        self.checked = CHECKSUM in notes
        shapes, types = ({name: getattr(one, part) for name, one in self.tensors.items()} for part in ("shape", "dtype"))
        super().__init__(path, Header.read(notes, path).state, shapes, types)

    def _fill(self, into: dict[str, Tensor], lay_out: LayOut) -> None:
        for name, tensor in into.items():
            tensor.copy_(lay_out(tensor, self.tensors[name]))


@dataclass(frozen=True)
class _Writing:
    """A checkpoint on its way to the disk."""

    path: Path
    state: dict[str, object]
    done: Future[str]  # a checksum
    part: Part | None = None  # of several processes


class Checkpoints:
    def __init__(self, folder: Path, keep: int = KEPT):
        self.folder, self.keep = folder, keep
        self.passed_over: list[str] = []  # why checkpoints newer than the one loaded were not
        self.seconds = 0.0  # the last one took, from `begin` to the disk
        self.writing: _Writing | None = None

    def files(self) -> list[Path]:
        """Files and folders, oldest first."""
        found = [(int(match[1]), path) for path in self.folder.glob("step-*") if (match := NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    @property
    def last(self) -> Path | None:
        return self.files()[-1] if self.files() else None

    def clear(self) -> None:
        """Remove what killed writers left, ours and the tensor library's. Only for the owner of the run."""
        remove_partial(self.folder)
        for pattern in ("*.partial", ".tmp*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    # --- writing -------------------------------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, object], world: World = World()) -> Path:  # noqa: B008 - frozen
        """It is on the disk on return. Every process has to call this."""
        self.begin(step, tensors, state, world)
        self.finish(world)
        return self.folder / self._name(step, world)

    def begin(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, object], world: World = World()) -> None:  # noqa: B008
        """Copy the tensors to host memory and write them in the background. The one before is waited for. Every process has to call
        this. OSError where the one before could not be written."""
        self.finish(world)
        path, began = self.folder / self._name(step, world), time.monotonic()
        if world.size > 1:
            from tokmix.training.checkpoint_parts import Part

            partial = path.with_name(f".{path.name}{PARTIAL}-{world.agree(secrets.token_hex(6))}")
            part = Part(partial, tensors, world)
            self.writing = _Writing(path, state, self._in_thread(began, part.write), part)
        else:
            copies = copy_to_host(tensors)
            self.writing = _Writing(path, state, self._in_thread(began, lambda: self._write(path, copies, state)))

    @staticmethod
    def _name(step: int, world: World) -> str:
        return f"step-{step:08d}" + (".safetensors" if world.size == 1 else "")

    def _in_thread(self, began: float, act: Callable[[], str]) -> Future[str]:
        done: Future[str] = Future()

        def run() -> None:
            try:
                if (log := self.folder.with_name(LOG)).is_file():
                    sync_file(log)  # first the lines of the steps before it: a resumed run does not write them again
                made = act()
                self.seconds = time.monotonic() - began
                done.set_result(made)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="checkpoint").start()  # no daemon: the process ends when it has written
        return done

    def _write(self, path: Path, tensors: dict[str, Tensor], state: dict[str, object]) -> str:
        made = save_tensors(path, tensors, Header(state).notes())
        self._prune(path)
        return made

    @property
    def written(self) -> bool:
        """Whether this process has no more to write, or failed to."""
        return self.writing is None or self.writing.done.done()

    def finish(self, world: World = World()) -> None:  # noqa: B008 - frozen
        """Wait until what was begun is on the disk under its name. Every process has to call this; OSError on all where one fails."""
        if self.writing is None:
            return
        writing, self.writing = self.writing, None
        if writing.part is None:
            writing.done.result()
            return
        writing.part.commit(writing.path, writing.state, writing.done, world, self._prune)

    def settle(self) -> None:
        """Wait for this process's writing alone, without an error. What several processes were writing is not finished by it."""
        if self.writing is not None:
            self.writing.done.exception()

    def _prune(self, path: Path, later: bool = True) -> None:
        """Keep the last few up to this one; later ones, which were passed over, go once a new one is written."""
        files = self.files()
        place = files.index(path)
        for old in [*files[:place][: -self.keep + 1 or None], *(files[place + 1 :] if later else ())]:
            remove(old)

    # --- reading -------------------------------------------------------------------------------------------------------

    def newest(self, world: World = World()) -> Stored | None:  # noqa: B008 - frozen
        """The newest that is whole; None where there is none. Every process has to call this."""
        self.passed_over = []
        for name in reversed(world.agree([path.name for path in self.files()])):
            found, problem = None, None
            try:
                found = open_checkpoint(self.folder / name, world)
            except (ValueError, OSError) as error:
                problem = str(error)
            problems = [told for told in world.gather(problem) if told is not None]
            if not problems:
                return found
            self.passed_over.append(problems[0])
        if self.passed_over:
            raise Damaged(f"no checkpoint in {self.folder} can be read: {self.passed_over[0]}")
        return None

    def resume(self, world: World = World()) -> Stored | None:  # noqa: B008 - frozen
        """As `newest`; and what a kill kept from being removed is removed now, since a run that was at its end saves no more."""
        found = self.newest(world)
        if found is not None and world.first:
            self._prune(found.path, later=False)
        return found

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """All tensors of the newest that is whole, in one process, and the state."""
        found = self.newest()
        if found is None:
            return None
        tensors = {name: torch.empty(shape, dtype=found.types[name]) for name, shape in found.shapes.items()}
        found.read(tensors, lambda tensor, full: full)
        return tensors, found.state


def open_checkpoint(path: Path, world: World = World()) -> Stored:  # noqa: B008 - frozen
    """Damaged where it is not whole. Several processes share out the parts to be checked."""
    if path.is_dir():
        from tokmix.training.checkpoint_parts import StoredParts

        return StoredParts(path, world)
    return StoredFile(path)


def remove(path: Path) -> None:
    """A folder gets a hidden name first, so that a half of it is never taken for a checkpoint."""
    if not path.is_dir():
        path.unlink()
        return
    hidden = path.with_name(f".{path.name}{PARTIAL}-{secrets.token_hex(6)}")
    path.rename(hidden)
    sync_folder(path.parent)
    shutil.rmtree(hidden)


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that training does not change. From a GPU by one transfer after another, waited for once."""
    copies, device = {}, None
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            device = tensor.device
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies[name] = pinned.copy_(tensor.detach(), non_blocking=True)
        else:
            copies[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    if device is not None:
        torch.cuda.synchronize(device)
    return copies


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> str:
    """The file appears complete or not at all; its header has a checksum of the tensors and the notes, which is returned."""
    safe = need("safetensors.torch", "saving a model")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    made = checksum(whole, notes)
    with replacing(path) as partial:
        safe.save_file(whole, partial, notes | {CHECKSUM: made})
    return made


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
