"""training.json of a model folder as a dataclass. Only this module reads the file; training_record.py collects what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokmix.runs.files import Damaged, JsonObject, read_json
from tokmix.runs.records import check_format

RECORD = "training.json"
FORMAT = "tokmix-training"
VERSION = 2  # 1: the same without hashes


@dataclass(frozen=True)
class Columns:
    """Names of the columns that the model was trained on; without `text` for a running text."""

    text: tuple[str, ...] = ()
    target: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class ModelRecord:
    """What tokmix needs again of the run that made the model."""

    task: str
    labels: list[str]
    columns: Columns
    stream: bool  # running text, not rows with their own special tokens
    roles: dict[str, int]  # ids of pad, cls, sep, mask, eot
    tokenizer_hash: str | None
    reading: JsonObject  # settings of prepare by which the files were read
    sources: tuple[str, ...]  # names of the files
    settings: JsonObject  # of train, by name
    deviation: float  # of train's scores
    answers: JsonObject | None  # how network and bag of words answer together
    json: JsonObject  # the whole file

    @classmethod
    def read(cls, folder: Path) -> ModelRecord:
        path = folder / RECORD
        if not path.is_file():
            raise Damaged(f"{folder} is not a model folder of `tokmix train`, or damaged: {RECORD} is missing")
        found = read_json(path)
        check_format(found, path, FORMAT, (1, VERSION), "a trained model")
        for name, kind in (("task", str), ("labels", list), ("tokenizer", dict), ("columns", dict), ("stream", bool)):
            if not isinstance(found.get(name), kind):
                raise Damaged(f"{folder} is damaged: {RECORD} has no {name!r}" + (" that can be read" if name in found else ""))
        if not all(isinstance(label, str) for label in found["labels"]):
            raise Damaged(f"{folder} is damaged: {RECORD} has no 'labels' that can be read")
        columns, tokenizer = found["columns"], found["tokenizer"]
        texts, roles = columns.get("text") or [], tokenizer.get("roles")
        if not isinstance(texts, list) or not all(isinstance(name, str) for name in texts):
            raise Damaged(f"{folder} is damaged: {RECORD} has no 'columns' that can be read")
        if not isinstance(roles, dict) or not all(isinstance(one, int) and not isinstance(one, bool) for one in roles.values()):
            raise Damaged(f"{folder} is damaged: {RECORD} does not say which tokens are special")
        data, settings = _part(found, "data"), _part(found, "settings")
        return cls(
            task=found["task"], labels=found["labels"], columns=Columns(tuple(texts), columns.get("target"), columns.get("split")),
            stream=found["stream"], roles=roles, tokenizer_hash=tokenizer.get("sha256"),
            reading=_part(data, "reading") or _part(settings, "prepare"), sources=tuple(one["name"] for one in data.get("source") or []),
            settings=_part(settings, "train"), deviation=found.get("deviation") or 1.0,  # older folders lack it
            answers=found.get("answers"), json=found,
        )  # fmt: skip


def _part(found: JsonObject, name: str) -> JsonObject:
    """An object inside of the file; {} if it is not there."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}
