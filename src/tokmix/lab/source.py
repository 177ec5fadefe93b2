"""Data for a trained model: read as it was for training, with the model's own tokenizer, columns and classes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokmix.data.prepare import prepare
from tokmix.data.read import Part, Text, open_source
from tokmix.data.tokens import TokenFiles, TokenSplit, is_prepared
from tokmix.lab.modelfolder import Trained
from tokmix.lab.opening import check_not_late


def columns_of(trained: Trained) -> dict[str, Any]:
    """The columns it was trained on, as settings of prepare."""
    columns = trained.record["columns"]
    if not columns:
        return {}
    return {"text": ",".join(columns["text"]), "label": columns.get("target")}


@contextmanager
def token_files(trained: Trained, data: str | Path, settings: dict[str, Any]) -> Iterator[TokenFiles]:
    """Prepared data as it is (it has to have the model's tokenizer and classes); other data is prepared in a folder that goes away."""
    if is_prepared(data):
        check_not_late(data, settings)
        files = TokenFiles(data)
        if files.card.tokenizer["sha256"] != trained.record["tokenizer"]["sha256"]:
            raise ValueError(f"{data} was prepared with another tokenizer than {trained.folder}: give the data itself, or prepare it anew")
        if trained.task == "classify" and files.card.labels != trained.labels:
            raise ValueError(f"{data} has the classes {', '.join(files.card.labels)}, but the model {', '.join(trained.labels)}")
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        out = Path(folder) / "data"
        known = _settings(trained, data, settings)
        prepare(data, out, **known)
        yield TokenFiles(out)


def _settings(trained: Trained, data: str | Path, settings: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in columns_of(trained).items() if value is not None}
    task = "lm" if trained.task == "mlm" and trained.record["stream"] else trained.task
    known |= {"task": task, "tokenizer": str(trained.folder / "tokenizer.json"), **settings}
    if not trained.record["stream"]:
        known.setdefault("max_len", trained.model.config.max_len)
    if trained.labels:
        known["labels"] = trained.labels
    if not has_splits(_parts(data, known), known.get("split_column")):
        known["into"] = "test"
    return known


def _parts(data: str | Path, known: dict[str, Any]) -> list[Part]:
    header = known["header"].split(",") if known.get("header") else None
    return open_source(
        data, format=known.get("format"), pattern=known.get("pattern"), header=header, encoding=known.get("encoding", "utf-8"),
        subset=known.get("subset"), task=known.get("task"),
    )  # fmt: skip


def has_splits(parts: list[Part], column: str | None) -> bool:
    if len({part.split for part in parts} - {None}) > 1 and any(part.split == "train" for part in parts):
        return True
    return not isinstance(parts[0], Text) and (column or "split") in parts[0].columns()


def choose_split(files: TokenFiles, asked: str | None) -> TokenSplit:
    """The one asked for; else the only one; else test, then valid."""
    if asked is not None:
        files.card.split(asked)
        return files[asked]
    order = [name for name in ("test", "valid", "train") if name in files]
    return files[order[0]]
