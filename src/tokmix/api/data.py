"""Data of a Python program -> a path, which all other code reads.

as_path("reviews.csv")                              the path itself
as_path([("a fine film", "good"), ...])             (text, label), or (one text, the other, label)
as_path([{"text": "a fine film", "label": "good"}]) rows with named columns
as_path({"text": [...], "label": [...]})            columns
as_path(pandas.DataFrame), as_path(datasets.Dataset or DatasetDict)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

NAME = "data.jsonl"
TEXTS = {1: ("text",), 2: ("text1", "text2")}  # names of the columns of rows without names
LABEL = "label"


@runtime_checkable
class Frame(Protocol):
    """The methods of a pandas.DataFrame that are used."""

    @property
    def columns(self) -> Iterable[object]: ...

    def itertuples(self, index: bool = ..., name: str | None = ...) -> Iterable[tuple[object, ...]]: ...


@runtime_checkable
class Saved(Protocol):
    """The methods of a datasets.Dataset or DatasetDict that are used."""

    def save_to_disk(self, dataset_path: str) -> None: ...


Row: TypeAlias = str | Sequence[object] | Mapping[str, object]
Data: TypeAlias = str | Path | Frame | Saved | Mapping[str, Sequence[object]] | Iterable[Row]


@contextmanager
def as_path(data: Data, text: Sequence[str] | None = None, label: str | None = None) -> Iterator[str | Path]:
    """A path to the data. Data that is not on disk is written to a temporary folder.
    text, label: column names for rows without names, from a model."""
    if isinstance(data, (str, Path)):
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        if isinstance(data, Saved):
            yield _save(data, Path(folder) / "data")
            return
        count = 0
        with open(Path(folder) / NAME, "w", encoding="utf-8") as file:
            for count, row in enumerate(named_rows(data, text, label), 1):  # noqa: B007 - the last one is the count
                file.write(json.dumps(row, ensure_ascii=False, default=_plain) + "\n")
        if not count:
            raise ValueError("the data has no rows")
        yield Path(folder) / NAME


def named_rows(data: Data, text: Sequence[str] | None = None, label: str | None = None) -> Iterator[dict[str, object]]:
    """Rows as dictionaries, with the same columns in each."""
    if isinstance(data, Frame):
        names = [str(name) for name in data.columns]
        for values in data.itertuples(index=False, name=None):
            yield dict(zip(names, map(_known, values), strict=True))
    elif isinstance(data, Mapping):
        lengths = {name: len(values) for name, values in data.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns differ in length: {', '.join(f'{name} {n:,}' for name, n in lengths.items())}")
        for values in zip(*data.values(), strict=True):
            yield dict(zip(data, map(_known, values), strict=True))
    elif isinstance(data, Iterable):
        yield from (_named(row, i, text, label) for i, row in enumerate(data))
    else:
        kinds = "a path, a pandas.DataFrame, a datasets.Dataset, a dictionary of columns, or a list of (text, label) or of dictionaries"
        raise ValueError(f"data of type {type(data).__name__} cannot be read: give {kinds}")


def _named(row: Row, number: int, text: Sequence[str] | None, label: str | None) -> dict[str, object]:
    if isinstance(row, str):
        return {(text or TEXTS[1])[0]: row}
    if isinstance(row, Mapping):
        return {str(name): _known(value) for name, value in row.items()}
    if isinstance(row, Sequence) and len(row) in (2, 3):
        names = text if text is not None and len(text) == len(row) - 1 else TEXTS[len(row) - 1]
        return dict(zip((*names, label or LABEL), map(_known, row), strict=True))
    what = f"{len(row)} values" if isinstance(row, Sequence) else f"a {type(row).__name__}"
    raise ValueError(f"row {number} of the data has {what}; a row is a text, (text, label), (text, text, label) or a dictionary")


def _known(value: object) -> object:
    """None for a missing value; pandas uses NaN and NaT, which are not equal to themselves."""
    if isinstance(value, (str, int)):
        return value
    missing = value != value if isinstance(value, float) else str(value) in ("<NA>", "NaT")
    return None if missing else value


def _plain(value: object) -> object:
    """Numbers and arrays of numpy as Python's own; other values, such as dates, as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _save(data: Saved, folder: Path) -> Path:
    """Save with class names, which rows alone would lose."""
    from tokmix.core.optional import need

    datasets = need("datasets", "reading a datasets.Dataset")
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        data.save_to_disk(str(folder))
    finally:
        if shown:
            datasets.enable_progress_bars()
    return folder
