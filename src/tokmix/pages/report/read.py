"""Reads the folders of a report: runs and models of `train`, folders of `tune`, `compare` and `papers`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tokmix.runs.files import JsonObject, read_json

T = TypeVar("T")
BEGUN = {"study.json": "tune", "asked.json": "compare"}  # the first file that each command writes
POINTS = 300  # most points of a curve


@dataclass(frozen=True)
class Run:
    """One training: a run folder or a model folder. record is None if the run has not ended."""

    name: str
    folder: Path
    record: JsonObject | None = None
    log: list[JsonObject] = field(default_factory=list)
    note: str = ""
    source: str = "DATA"  # the data's name

    @property
    def cost(self) -> JsonObject:
        return part(self.record, "cost")


@dataclass(frozen=True)
class Group:
    """A folder of `tune` or `compare`: its record and its runs."""

    name: str
    folder: Path
    record: JsonObject
    runs: dict[str, Run]  # by the run's folder, relative


@dataclass(frozen=True)
class Paper:
    """Results files of one paper, by item."""

    name: str
    folder: Path
    results: dict[str, JsonObject]


@dataclass(frozen=True)
class Found:
    runs: list[Run] = field(default_factory=list)
    tunes: list[Group] = field(default_factory=list)
    compares: list[Group] = field(default_factory=list)
    papers: list[Paper] = field(default_factory=list)


def read(folders: Sequence[str | Path]) -> Found:
    if not folders:
        raise ValueError("a report needs at least one folder of train, tune, compare or papers")
    found = Found()
    spelled: dict[Path, Path] = {}  # each folder once, with its first spelling
    for folder in folders:
        spelled.setdefault(Path(folder).resolve(), Path(folder))
    paths = list(spelled.values())
    for path, name in zip(paths, _names(paths), strict=True):
        if not path.is_dir():
            raise ValueError(f"no folder {str(path)!r}")
        if (path / "compare.json").is_file():
            found.compares.append(_group(path, name, "compare", "runs"))
        elif (path / "tune.json").is_file():
            found.tunes.append(_group(path, name, "tune", "trials"))
        elif (path / "run.json").is_file() or (path / "model" / "training.json").is_file() or (path / "training.json").is_file():
            found.runs.append(_run(path, name))
        elif papers := _papers(path):
            found.papers.extend(papers)
        elif begun := next((command for file, command in BEGUN.items() if (path / file).is_file()), None):
            raise ValueError(f"{path} is a folder of {begun} that has not ended: finish it with the same command and --resume")
        else:
            raise ValueError(
                f"{path} is no folder of train, tune or compare (it has no run.json, training.json, tune.json or compare.json),"
                " and holds no results of papers"
            )
    return found


def _papers(path: Path) -> list[Paper]:
    """Of reproduce/, of reproduce/NAME, or of a folder that `papers --out` filled."""
    inner = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and not folder.name.endswith(".jobs")]
    places = [path, *(place for folder in inner for place in (folder, folder / "results"))]
    found = []
    for place in places:
        files = {file.stem: read_json(file) for file in sorted(place.glob("*.json"))} if place.is_dir() else {}
        for paper in dict.fromkeys(str(content.get("paper")) for content in files.values() if content.get("format") == "tokmix-papers"):
            own = [content for content in files.values() if content.get("paper") == paper]
            found.append(Paper(paper, place, {str(content.get("item")): content for content in own}))
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as make names different."""
    parts = [path.resolve().parts for path in paths]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names


def _run(path: Path, name: str) -> Run:
    log = _log(path / "log.jsonl")
    for place in (path / "model" / "training.json", path / "training.json"):
        if place.is_file():
            record = read_json(place)
            if not isinstance(record.get("model"), dict) or "task" not in record:
                raise ValueError(f"{place} does not describe a trained model")
            return Run(name, path, record, log, source=_source(path, record))
    return Run(name, path, None, log, "has not ended")


def _source(path: Path, record: JsonObject) -> str:
    """The data given to `train`: the name of a file or folder, or of the folder of prepared data."""
    if folder := part(part(record, "data"), "prepared").get("folder"):
        return str(folder)
    asked = read_json(path / "run.json").get("source") if (path / "run.json").is_file() else None
    if isinstance(asked, str):  # the hash of prepared data, if the record does not name the folder
        return "DATA" if re.fullmatch("[0-9a-f]{64}", asked) else asked
    return made_of(record)


def made_of(record: JsonObject) -> str:
    """Name of the one file that the data was prepared from."""
    files = rows(part(record, "data"), "source")
    return str(files[0].get("name", "DATA")) if len(files) == 1 else "DATA"


def _group(path: Path, name: str, kind: str, inner: str) -> Group:
    record = read_json(path / f"{kind}.json")
    if record.get("format") != f"tokmix-{kind}":
        raise ValueError(f"{path / f'{kind}.json'} has format {record.get('format')!r}, not 'tokmix-{kind}'")
    if record.get("version") != 1:
        raise ValueError(f"{path / f'{kind}.json'} has format version {record.get('version')!r}; this tokmix reads version 1")
    runs: dict[str, Run] = {}
    if (path / inner).is_dir():
        for folder in sorted((path / inner).iterdir()):
            if (folder / "run.json").is_file() or (folder / "model" / "training.json").is_file():
                runs[f"{inner}/{folder.name}"] = _run(folder, folder.name)
    return Group(name, path, record, runs)


def _log(path: Path) -> list[JsonObject]:
    """Complete entries only; the last line may be cut off."""
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


def thin(points: list[T]) -> list[T]:
    """At most POINTS of them, evenly, the last among them."""
    if len(points) <= POINTS:
        return points
    step = (len(points) - 1) / (POINTS - 1)
    return [points[round(i * step)] for i in range(POINTS)]


def part(record: object, name: str) -> JsonObject:
    """record[name] if it is an object, else {}."""
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, dict) else {}


def rows(record: JsonObject, name: str) -> list[JsonObject]:
    found = record.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def product(*values: object) -> float | None:
    """The product of numbers; None if one is missing."""
    found = [number(value) for value in values]
    return None if None in found else math.prod(value for value in found if value is not None)
