"""A checkpoint of several processes: each writes its own part, and nothing is gathered.

    checkpoints/step-00000120/part-0.safetensors, part-1.safetensors    pieces: weights.embedding.weight@128,0 begins at row 128
    checkpoints/step-00000120/checkpoint.json                           the state, all shapes, and a checksum of each part

torch.distributed.checkpoint plans which process writes which piece (what all of them hold is written once), and reads the pieces into
any other layout. Its own file formats are not used: one pickles its metadata, and neither flushes files to the disk, keeps checksums,
or can be written without messages between the processes, which training needs meanwhile.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult

from tokmix.core.optional import need
from tokmix.runs.files import Damaged, check_seal, read_json, seal, sync_folder, write_json
from tokmix.runs.records import check_format, from_json
from tokmix.training.checkpoint import CHECKSUM, LayOut, Stored, copy_to_host, load_tensors, remove, save_tensors
from tokmix.training.distributed import World

RECORD = "checkpoint.json"
FORMAT = "tokmix-checkpoint-parts"
VERSION = 1


@dataclass(frozen=True)
class PartsRecord:
    state: dict[str, object]
    shapes: dict[str, list[int]]  # of the full tensors
    parts: dict[str, str]  # file -> checksum
    checksum: str = ""
    format: str = FORMAT
    version: int = VERSION

    def write(self, folder: Path) -> None:
        known = asdict(self)
        del known["checksum"]
        write_json(folder / RECORD, seal(known))

    @classmethod
    def read(cls, folder: Path) -> PartsRecord:
        path = folder / RECORD
        known = read_json(path)
        check_format(known, path, FORMAT, (VERSION,), "a checkpoint")
        check_seal(known, path)
        return from_json(cls, known, path)


def _key(name: str, offsets: torch.Size) -> str:
    return f"{name}@{','.join(map(str, offsets))}"


class _Pieces(StorageWriter):
    """Copies to host memory what torch's plan gives to this process."""

    def __init__(self) -> None:
        self.copies: dict[str, Tensor] = {}
        self.shapes: dict[str, list[int]] = {}  # on the first process

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        pieces = {}
        for item in plan.items:
            assert item.tensor_data is not None
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            if tensor.numel() or not item.tensor_data.size.numel():
                pieces[_key(item.index.fqn, item.tensor_data.chunk.offsets)] = tensor
        self.copies = copy_to_host(pieces)
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.shapes = {name: list(one.size) for name, one in metadata.state_dict_metadata.items() if isinstance(one, TensorStorageMetadata)}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class Part:
    """What this process writes of a checkpoint, copied to host memory."""

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor], world: World):
        pieces = _Pieces()
        try:
            save(dict(tensors), storage_writer=pieces)
        except CheckpointException as error:
            raise _first_of(error) from error
        self.folder, self.copies, self.shapes = folder, pieces.copies, pieces.shapes
        self.file = f"part-{world.rank}.safetensors"

    def write(self) -> str:
        """In the background. -> checksum"""
        made = save_tensors(self.folder / self.file, self.copies, {})
        self.copies = {}
        return made

    def commit(self, path: Path, state: dict[str, object], done: Future[str], world: World, prune: Callable[[Path], None]) -> None:
        """When all parts are there, the folder gets its record and its name. The same OSError on every process where one failed."""
        error = done.exception()
        if error is not None and not isinstance(error, OSError):
            raise error
        told = world.gather((self.file, "" if error else done.result(), str(error) if error else None))
        problem = next((problem for _, _, problem in told if problem is not None), None)
        if world.first:
            try:
                if problem is None:
                    PartsRecord(state, self.shapes, {file: made for file, made, _ in told}).write(self.folder)
                    if path.exists():  # passed over as damaged, or the same step again
                        remove(path)
                    self.folder.rename(path)
                    sync_folder(path.parent)
                    prune(path)
            except OSError as failed:
                problem = str(failed)
            if problem is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
        problem = world.agree(problem)
        if problem is not None:
            raise OSError(problem)


class _Reader(StorageReader):
    def __init__(self, stored: StoredParts):
        self.stored = stored

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in self.stored.shapes}
        for (name, offsets), piece in self.stored.pieces.items():
            chunks[name].append(ChunkStorageMetadata(torch.Size(offsets), piece.shape))
        types, shapes = self.stored.types, self.stored.shapes
        return Metadata({name: TensorStorageMetadata(TensorProperties(types[name]), shapes[name], own) for name, own in chunks.items()})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        safe = need("safetensors", "loading a checkpoint")
        by_file: dict[str, list[tuple[str, ReadItem]]] = {}
        for item in plan.items:
            name, offset = item.storage_index.fqn, item.storage_index.offset
            assert offset is not None
            by_file.setdefault(self.stored.pieces[name, tuple(offset)].file, []).append((_key(name, offset), item))
        for file, items in by_file.items():
            with safe.safe_open(self.stored.path / file, "pt") as opened:
                for key, item in items:
                    piece = opened.get_slice(key)
                    place = tuple(slice(first, first + length) for first, length in zip(item.storage_offsets, item.lengths, strict=True))
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(piece[place] if place else opened.get_tensor(key))
                    planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


@dataclass(frozen=True)
class _Piece:
    file: str
    shape: torch.Size
    dtype: torch.dtype


class StoredParts(Stored):
    """By several processes. Each of those that read it checks its share of the parts."""

    def __init__(self, path: Path, world: World):
        record = PartsRecord.read(path)
        self.world = world
        for place, (file, wanted) in enumerate(record.parts.items()):
            if place % world.size == world.rank and load_tensors(path / file)[1].get(CHECKSUM) != wanted:
                raise Damaged(f"{path / file} is damaged: it belongs to another checkpoint")
        self.pieces = _pieces(path, record)
        types = {name: piece.dtype for (name, _), piece in self.pieces.items()}
        super().__init__(path, record.state, {name: torch.Size(shape) for name, shape in record.shapes.items()}, types)

    def _fill(self, into: dict[str, Tensor], lay_out: LayOut) -> None:
        """torch lays out the pieces itself."""
        alone = self.world.size == 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that nobody else reads, which is meant
                load(into, storage_reader=_Reader(self), no_dist=alone)
        except CheckpointException as error:
            raise _first_of(error) from error


def _pieces(path: Path, record: PartsRecord) -> dict[tuple[str, tuple[int, ...]], _Piece]:
    """From the headers of all parts."""
    safe, found = need("safetensors", "loading a checkpoint"), {}
    for file in record.parts:
        try:
            with safe.safe_open(path / file, "pt") as opened:
                for key in opened.keys():  # noqa: SIM118
                    name, _, offsets = key.rpartition("@")
                    shape, kind = opened.get_slice(key).get_shape(), opened.get_slice(key).get_dtype()
                    place = tuple(int(offset) for offset in offsets.split(",") if offset)
                    found[name, place] = _Piece(file, torch.Size(shape), TYPES[kind])
        except (safe.SafetensorError, ValueError, KeyError) as error:
            raise Damaged(f"{path / file} is damaged: {' '.join(str(error).split())}") from None
    held: dict[str, int] = dict.fromkeys(record.shapes, 0)
    for (name, _), piece in found.items():
        held[name] = held.get(name, 0) + piece.shape.numel()
    wrong = next((name for name, count in held.items() if count != torch.Size(record.shapes.get(name, [0])).numel()), None)
    if wrong is not None:
        raise Damaged(f"{path} is damaged: its parts do not make up {wrong!r}")
    return found


TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def _first_of(error: CheckpointException) -> BaseException:
    """torch wraps the errors of all processes in one that is no Exception."""
    return next(iter(error.failures.values()))[0]
