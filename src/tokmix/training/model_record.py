"""training.json of a model folder as a dataclass. Only this module reads the file; training_record.py collects what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokmix.runs.files import Damaged, JsonObject, read_json
from tokmix.runs.records import check_format, from_json
from tokmix.training.mixture import Mixture

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
        columns, tokenizer, data, settings = found["columns"], found["tokenizer"], _part(found, "data"), _part(found, "settings")
        texts, roles, sources = columns.get("text") or [], tokenizer.get("roles"), data.get("source") or []
        deviation, answers = found.get("deviation") or 1.0, found.get("answers")  # older folders lack both
        for name, good in (
            ("labels", _all(found["labels"], str)),
            ("columns.text", _all(texts, str)),
            ("tokenizer.roles", isinstance(roles, dict) and _all(list(roles.values()), int)),  # which tokens are special
            ("data.source", _all(sources, dict) and _all([one.get("name") for one in sources], str)),
            ("deviation", isinstance(deviation, (int, float)) and deviation > 0),
            ("answers", answers is None or isinstance(answers, dict)),
        ):
            if not good:
                raise Damaged(f"{folder} is damaged: {RECORD} has no {name!r} that can be read")
        if answers:
            from_json(Mixture, {**answers, "held": {}}, path)
        return cls(
            task=found["task"], labels=found["labels"], columns=Columns(tuple(texts), columns.get("target"), columns.get("split")),
            stream=found["stream"], roles=roles, tokenizer_hash=tokenizer.get("sha256"),
            reading=_part(data, "reading") or _part(settings, "prepare"), sources=tuple(one["name"] for one in sources),
            settings=_part(settings, "train"), deviation=deviation, answers=answers, json=found,
        )  # fmt: skip


def _all(values: object, kind: type) -> bool:
    """A list of values of this type; bool is no int."""
    return isinstance(values, list) and all(isinstance(one, kind) and not isinstance(one, bool) for one in values)


def _part(found: JsonObject, name: str) -> JsonObject:
    """An object inside of the file; {} if it is not there."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}
