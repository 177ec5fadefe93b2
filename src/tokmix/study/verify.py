"""`tokmix verify FOLDER`: reads every byte of what tokmix wrote and compares it with its checksums.

A prepared folder, a model folder, an exported one, a run of `train` or `transfer`, or a folder of `tune` or `compare` with all its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokmix.data.card import NAME as CARD
from tokmix.data.tokens import TokenFiles
from tokmix.runs.files import check_files, read_json
from tokmix.runtime import folder as exported
from tokmix.training import model_folder
from tokmix.training.checkpoint import CHECKSUM, Checkpoints, load_tensors, open_checkpoint
from tokmix.training.distill.teacher import FOLDER as TEACHER
from tokmix.training.distill.teacher import Vectors
from tokmix.training.model_record import ModelRecord
from tokmix.training.report import read_log
from tokmix.training.run_record import NAME as RUN
from tokmix.training.run_record import RunRecord
from tokmix.training.transfer.settings import PARTS
from tokmix.training.transfer.settings import RECORD as TRANSFER
from tokmix.training.warmup import FOLDER as WARM_UP
from tokmix.training.warmup import WEIGHTS

WHOLE, NO_CHECKSUM, DAMAGED = "whole", "no checksum", "damaged"
STUDIES = {"study.json": "trials", "asked.json": "runs"}  # the first file that tune and compare write, and the folder of their runs
RECORDS = ("study.json", "asked.json", "tune.json", "compare.json", "result.json")


@dataclass(frozen=True)
class Finding:
    path: Path
    state: str  # whole, no checksum, damaged
    note: str

    def line(self) -> str:
        return f"{self.state:11}  {self.path}  ({self.note})" if self.state != DAMAGED else f"{self.state:11}  {self.note}"


def verify(folder: str | Path) -> list[Finding]:
    """ValueError if the folder is not tokmix's. Damage is reported in the findings and does not stop the check."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"no folder {str(path)!r}")
    found = list(_folder(path))
    if not found:
        names = ", ".join((CARD, model_folder.RECORD, exported.MANIFEST, RUN, *STUDIES))
        raise ValueError(f"{path} is no folder of tokmix: it has none of {names}")
    return found


def _folder(path: Path) -> Iterator[Finding]:
    for name in RECORDS:
        if (path / name).is_file():
            yield _try(path / name, lambda name=name: (NO_CHECKSUM, f"JSON, {len(read_json(path / name))} fields"))  # type: ignore[misc]
    if (path / CARD).is_file():
        yield _try(path, lambda: _tokens(path))
        if (path / TEACHER / CARD).is_file():
            yield _try(path / TEACHER, lambda: (WHOLE, f"{Vectors(TokenFiles(path)).verify()} files of vectors"))
    if exported.is_exported(path):
        yield _try(path, lambda: _exported(path))
    elif (path / TRANSFER).is_file():
        yield _try(path, lambda: (WHOLE, f"{check_files(path, read_json(path / TRANSFER), TRANSFER)} files"))
    elif (path / model_folder.RECORD).is_file() or (path / "config.json").is_file():
        yield _try(path, lambda: _model(path))
    if (path / RUN).is_file():
        yield _try(path / RUN, lambda: (NO_CHECKSUM, f"a run on {RunRecord.read(path).source[:12]}"))
        yield from _training(path)
    for mark, inner in STUDIES.items():
        if (path / mark).is_file():
            if (path / "data" / CARD).is_file():
                yield from _folder(path / "data")
            for run in sorted(path.glob(f"{inner}/*/")):
                yield from _folder(run)


def _training(path: Path) -> Iterator[Finding]:
    for name in ("data", "model"):
        if (path / name).is_dir():
            yield from _folder(path / name)
    parts = [path / name for name in (WARM_UP, *PARTS)]
    for part in (path, *parts):
        for file in Checkpoints(part / "checkpoints").files():
            yield _try(file, lambda file=file: _checkpoint(file))  # type: ignore[misc]
        if (log := part / "log.jsonl").is_file():
            entries, lost = read_log(log)
            damage = f"{log} is damaged: {lost} of its lines cannot be read"
            yield Finding(log, DAMAGED, damage) if lost else Finding(log, NO_CHECKSUM, f"{len(entries)} entries")
    for weights in [part / WEIGHTS for part in parts if (part / WEIGHTS).is_file()]:
        yield _try(weights, lambda weights=weights: _tensors(weights))  # type: ignore[misc]


def _try(path: Path, look: Callable[[], tuple[str, str]]) -> Finding:
    try:
        return Finding(path, *look())
    except (ValueError, OSError) as error:
        return Finding(path, DAMAGED, " ".join(str(error).split()))


def _tokens(path: Path) -> tuple[str, str]:
    files = TokenFiles(path)
    files.verify()
    count = sum(len(split.files) for split in files.card.splits.values()) + 1
    return (WHOLE, f"{count} files and {CARD}") if files.card.version > 1 else (NO_CHECKSUM, f"{count} files; {CARD} has no checksum")


def _model(path: Path) -> tuple[str, str]:
    record = ModelRecord.read(path).json
    count = model_folder.verify(path, record)
    return (WHOLE, f"{count} files") if count else (NO_CHECKSUM, "written before hashes were kept")


def _exported(path: Path) -> tuple[str, str]:
    return WHOLE, f"{len(exported.read(path).files)} files and {exported.MANIFEST}"


def _checkpoint(path: Path) -> tuple[str, str]:
    found = open_checkpoint(path)
    return WHOLE if found.checked else NO_CHECKSUM, f"{len(found.shapes)} tensors"


def _tensors(path: Path) -> tuple[str, str]:
    tensors, notes = load_tensors(path)
    return WHOLE if CHECKSUM in notes else NO_CHECKSUM, f"{len(tensors)} tensors"
