"""Data of a Python program -> a path, which all other code reads.

as_path("reviews.csv")                              the path itself
as_path([("a fine film", "good"), ...])             (text, label), or (one text, the other, label)
as_path([{"text": "a fine film", "label": "good"}]) rows with named columns
as_path({"text": [...], "label": [...]})            columns
as_path((texts, labels))                            a tuple of two or three lists: columns too
as_path(pandas.DataFrame), as_path(datasets.Dataset or DatasetDict)
"""

from __future__ import annotations

import json
import re
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
Data: TypeAlias = str | Path | Frame | Saved | Mapping[str, Iterable[object]] | tuple[Iterable[object], ...] | Iterable[Row]


@contextmanager
def as_path(data: Data, text: Sequence[str] | None = None, label: str | None = None) -> Iterator[str | Path]:
    """A path to the data. Data that is not on disk is written to a temporary folder.
    text, label: column names for rows without names, from a model."""
    if isinstance(data, (str, Path)):
        if not str(data).strip():
            raise ValueError("the path of the data is empty")
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
        try:
            yield Path(folder) / NAME
        except ValueError as error:  # the caller knows rows, not the lines of our file
            if NAME not in str(error):
                raise
            told = re.sub(rf"{NAME}, line (\d+)", lambda line: f"row {int(line[1]) - 1} of the data", str(error))
            raise ValueError(told.replace(NAME, "the data")) from error


def named_rows(data: Data, text: Sequence[str] | None = None, label: str | None = None) -> Iterator[dict[str, object]]:
    """Rows as dictionaries, with the same columns in each."""
    if isinstance(data, Frame):
        names = [str(name) for name in data.columns]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the frame has {names.count(min(twice))} columns {min(twice)!r}: rename all but one")
        for values in data.itertuples(index=False, name=None):
            yield dict(zip(names, map(_known, values), strict=True))
    elif isinstance(data, Mapping):
        yield from _of_columns({str(name): _column(f"column {str(name)!r}", values) for name, values in data.items()})
    elif isinstance(data, tuple) and len(data) in (2, 3) and all(not isinstance(one, (*_ONE, tuple)) for one in data):
        columns = (*_text_names(len(data) - 1, text), label or LABEL)
        yield from _of_columns({name: _column(f"the list of column {name!r}", one) for name, one in zip(columns, data, strict=True)})
    elif isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray)):
        yield from (_named(row, i, text, label) for i, row in enumerate(data))
    else:
        kinds = "a path, a pandas.DataFrame, a datasets.Dataset, a dictionary of columns, or a list of (text, label) or of dictionaries"
        raise ValueError(f"data of type {type(data).__name__} cannot be read: give {kinds}")


_ONE = (str, bytes, Mapping)  # one value, and no column of values


def _column(what: str, values: object) -> list[object]:
    if isinstance(values, _ONE) or not isinstance(values, Iterable):
        raise ValueError(f"{what} is {_shown(values)}, not a list of values")
    return list(values)


def _of_columns(columns: Mapping[str, Sequence[object]]) -> Iterator[dict[str, object]]:
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError(f"the columns differ in length: {', '.join(f'{name} {len(one):,}' for name, one in columns.items())}")
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, map(_known, values), strict=True))


def _text_names(count: int, text: Sequence[str] | None) -> Sequence[str]:
    return text if text is not None and len(text) == count else TEXTS[count]


def _shown(value: object) -> str:
    return f"of type {type(value).__name__}" if value is None or isinstance(value, bytes) else f"{str(value)[:60]!r}"


def _named(row: object, number: int, text: Sequence[str] | None, label: str | None) -> dict[str, object]:
    if isinstance(row, str):
        return {(text or TEXTS[1])[0]: row}
    if isinstance(row, Mapping):
        return {str(name): _known(value) for name, value in row.items()}
    values = row.tolist() if hasattr(row, "tolist") else row  # of a numpy array
    if isinstance(values, Sequence) and not isinstance(values, bytes) and len(values) in (2, 3):
        return dict(zip((*_text_names(len(values) - 1, text), label or LABEL), map(_known, values), strict=True))
    what = f"{len(values)} values" if isinstance(values, Sequence) and not isinstance(values, bytes) else f"the type {type(row).__name__}"
    hint = "; two lists are given as a tuple, (texts, labels)" if what.endswith("values") else ""
    raise ValueError(f"row {number} of the data has {what}; a row is a text, (text, label), (text, text, label) or a dictionary{hint}")


def _known(value: object) -> object:
    """None for a missing value; pandas uses NaN and NaT, which are not equal to themselves."""
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, bytes):
        raise ValueError(f"the data has a value of type bytes, {value[:60]!r}: decode it to text")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
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
