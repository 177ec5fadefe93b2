"""run.json: what a run was asked for. --resume compares with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokmix.runs.files import read_json, write_json
from tokmix.runs.records import check_format, from_json

NAME = "run.json"
FORMAT = "tokmix-run"
VERSION = 1


@dataclass(frozen=True)
class RunRecord:
    source: str  # hash of prepared data, else the data's name
    settings: dict[str, dict[str, Any]]  # model, train, prepare
    format: str = FORMAT
    version: int = VERSION

    def write(self, out: Path) -> None:
        write_json(out / NAME, asdict(self))

    @classmethod
    def read(cls, out: Path) -> RunRecord:
        path = out / NAME
        known = {"format": FORMAT, "version": VERSION, **read_json(path)}  # the first ones did not say
        check_format(known, path, FORMAT, (VERSION,), "a run")
        return from_json(cls, known, path)
