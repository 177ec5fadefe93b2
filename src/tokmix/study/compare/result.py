"""result.json of one run of `compare`. Only this module reads it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tokmix.runs.files import check_seal, finite, read_json, seal, write_json
from tokmix.runs.records import check_format, from_json
from tokmix.study.compare.records import RunCost

NAME = "result.json"
FORMAT = "tokmix-result"
VERSION = 1


@dataclass(frozen=True)
class RunResult:
    """The result of a run. A failed run has only state and error."""

    state: Literal["finished", "failed"]
    score: float | None = None
    metric: str | None = None
    higher_is_better: bool | None = None
    cost: RunCost | None = None
    error: str | None = None
    format: str = FORMAT
    version: int = VERSION

    def write(self, path: Path) -> None:
        write_json(path, seal(finite(asdict(self))))

    @classmethod
    def read(cls, path: Path) -> RunResult:
        known = {
            "format": FORMAT,
            "version": VERSION,
            "state": "finished",
            **(read := read_json(path)),
        }  # files of the first version had neither version nor checksum
        check_format(known, path, FORMAT, (VERSION,), "a run of compare")
        known.pop("checksum", None)
        found = from_json(cls, known, path)
        if found.state == "finished" and (found.score is None or found.cost is None):
            raise ValueError(f"{path} is damaged: {path.name} is of a finished run, and has no score or cost")
        if "format" in read:
            check_seal(read, path)
        return found
