"""run.json: the settings of a run, which --resume compares, and its choices at the first start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tokmix.runs.files import read_json, write_json
from tokmix.runs.records import check_format, from_json
from tokmix.training.distributed import World

NAME = "run.json"
FORMAT = "tokmix-run"
VERSION = 1


@dataclass(frozen=True)
class RunRecord:
    source: str  # hash of prepared data, else the data's name
    settings: dict[str, dict[str, object]]  # model, train, prepare
    chosen: dict[str, Any] = field(default_factory=dict)  # choices at the first start, by Choices
    format: str = FORMAT
    version: int = VERSION

    def write(self, out: Path) -> None:
        write_json(out / NAME, asdict(self))

    @classmethod
    def read(cls, out: Path) -> RunRecord:
        path = out / NAME
        known = {"format": FORMAT, "version": VERSION, **read_json(path)}  # missing in the first version
        check_format(known, path, FORMAT, (VERSION,), "a run")
        return from_json(cls, known, path)


class Choices:
    """Choices of the first start; a resumed run does not choose again."""

    def __init__(self, out: Path, world: World):
        self.out, self.world = out, world
        self.known: dict[str, int] = world.agree(RunRecord.read(out).chosen if world.first else None)

    def get(self, name: str, choose: Callable[[], int]) -> int:
        if name not in self.known:
            self.set(name, choose())
        return int(self.known[name])

    def set(self, name: str, value: int | bool) -> None:
        self.known[name] = self.world.agree(value)
        if self.world.first:
            replace(RunRecord.read(self.out), chosen=self.known).write(self.out)
