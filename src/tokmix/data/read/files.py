"""Files -> rows of a table or pieces of plain text, streamed: one row, batch or chunk in memory at a time.

Plain files are read here with the standard library (and pyarrow for parquet) and not through `datasets`: a message has to
name the line that is wrong, a ragged row has to be an error instead of a guess, tsv has no quoting, and nothing should
first be copied into a cache as large as the data. `datasets` reads what only it knows: its own folders and the hub.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.checks import nearest, one_of
from tokmix.core.optional import need
from tokmix.data.read import stdin
from tokmix.data.read.lines import LONGEST_LINE, chunks, is_packed, lines
from tokmix.data.split import split_of_path

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

HUB = "hub:"  # nothing else ever asks the hub: a mistyped name of a folder must not
FORMATS = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
FORMATS |= {".parquet": "parquet", ".pq": "parquet", ".txt": "txt", ".text": "txt"}
FORMATS |= {".xlsx": "xlsx", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite"}
PACKED = (".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")
SNIFFED, FIRST = ",;\t|", 50  # separators that are looked for in so many lines
SEPARATORS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}  # names of what a shell would have to quote
UNLABELLED = object()  # the label of a row that a data set marks as having none


class Part(ABC):
    """One file (or one split of a Hugging Face data set): its rows, and the split its name tells."""

    def __init__(self, name: str, split: str | None, paths: Sequence[Path] = ()):
        self.name, self.split, self.paths = name, split, tuple(paths)
        self.notes: list[str] = []  # notes for the user

    unit = "line"

    def where(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"

    def classes(self, column: str) -> list[str] | None:
        """The names of a column's classes in their order, where the format knows them."""
        return None

    def fingerprint(self) -> str:
        """What tells this content from other content, where there are no files to hash."""
        return ""

    @abstractmethod
    def columns(self) -> list[str]: ...

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        """(line or row number, the values of these columns)."""


class File(Part):
    def __init__(self, path: Path, name: str, split: str | None, encoding: str):
        super().__init__(name, split, [path])
        self.path, self.encoding = path, encoding


class Text(File):
    """Plain text: no rows, only chunks."""

    def columns(self) -> list[str]:
        return []

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        raise AssertionError("plain text has no rows")

    def chunks(self) -> Iterator[str]:
        return chunks(self.path, self.encoding)


class Delimited(File):
    """csv with the usual quoting; tsv with none, so that a lone quote is a character like any other."""

    def __init__(
        self,
        path: Path,
        name: str,
        split: str | None,
        encoding: str,
        tabs: bool,
        header: Sequence[str] | None = None,
        separator: str | None = None,
    ):
        super().__init__(path, name, split, encoding)
        self.tabs, self.header, self.separator = tabs and separator is None, list(header) if header else None, separator

    def columns(self) -> list[str]:
        if self.header:
            return self.header
        for _, fields in self._records():
            return [field.strip() for field in fields]
        raise ValueError(f"{self.name} is empty")

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        picked = [place(self.name, names, column) for column in columns]
        records = self._records()
        if not self.header:
            next(records)
        for number, fields in records:
            while len(fields) > len(names) and not fields[-1].strip():  # a separator behind the last cell
                fields.pop()
            if len(fields) != len(names):
                raise ValueError(f"{self.where(number)}: {len(fields)} fields, but the header has {len(names)} ({', '.join(names)})")
            yield number, [fields[i] for i in picked]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        if self.tabs:
            for number, line in lines(self.path, self.encoding):
                if line.strip("\r\n"):
                    yield number, line.rstrip("\r\n").split("\t")
            return
        # The limit belongs to the whole process; the default of 128 Ki characters refuses long documents.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
        reader = csv.reader((line for _, line in lines(self.path, self.encoding)), delimiter=self._delimiter(), strict=True)
        before = 0
        try:
            for fields in reader:
                if fields:
                    yield before + 1, fields  # a quoted field may span lines: name the one the row begins on
                before = reader.line_num
        except csv.Error as error:
            why = "a carriage return alone ends no line: convert line ends to \\n" if "new-line" in str(error) else error
            raise ValueError(f"{self.where(before + 1)}: not a csv row ({why})") from None

    def _delimiter(self) -> str:
        """The one asked for; else the one that parts the first lines alike; of several a comma, unless a blank follows it."""
        if self.separator is not None:
            return self.separator
        first = next((line for _, line in lines(self.path, self.encoding)), "")
        known = [one for one in SNIFFED if one in first]
        if len(known) < 2:
            return known[0] if known else ","
        sample = [line for _, line in islice(lines(self.path, self.encoding), FIRST)]
        return max(known, key=lambda one: _fit(sample, one))


def _fit(sample: Sequence[str], separator: str) -> tuple[float, bool, int]:
    """How well a separator parts the first lines: the share of rows with as many cells as the header, no blank behind it, its rank."""
    try:
        widths = [len(row) for row in csv.reader(sample, delimiter=separator) if row]
    except csv.Error:
        widths = [1, 2]
    return widths.count(widths[0]) / len(widths), f"{separator} " not in sample[0], -SNIFFED.index(separator)


class Parquet(File):
    unit = "row"

    def _open(self) -> ParquetFile:
        if is_packed(self.path):
            raise ValueError(f"{self.name} is gzip, and parquet is read from its end: unpack it (it is compressed inside already)")
        try:
            return need("pyarrow.parquet", f"reading {self.name}").ParquetFile(self.path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.name} is not a parquet file, or a damaged one: {str(error).splitlines()[0]}") from None

    def columns(self) -> list[str]:
        with self._open() as file:
            return list(file.schema_arrow.names)

    def classes(self, column: str) -> list[str] | None:
        # `datasets` keeps class names in the file's own metadata, under this key.
        with self._open() as file:
            noted = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        return noted.get("info", {}).get("features", {}).get(column, {}).get("names")

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        for column in columns:
            place(self.name, names, column)
        known = {i: classes for i, column in enumerate(columns) if (classes := self.classes(column))}
        number = 0
        with self._open() as file:
            for batch in file.iter_batches(batch_size=1024, columns=list(dict.fromkeys(columns))):
                for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                    number += 1
                    yield number, name_classes(self.where(number), list(values), known)


def name_classes(where: str, values: list[object], known: dict[int, list[str]]) -> list[object]:
    """Numbers of classes -> their names; a negative number is how `datasets` marks a row without a label."""
    for i, names in known.items():
        number = values[i]
        if isinstance(number, int):
            if number >= len(names):
                shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
                raise ValueError(f"{where}: class {number} has no name; the names of 0 to {len(names) - 1} are {shown}")
            values[i] = names[number] if number >= 0 else UNLABELLED
    return values


def place(name: str, columns: Sequence[str], column: str) -> int:
    if column not in columns:
        raise ValueError(f"{name} has no column {column!r}; it has: {', '.join(columns)}{nearest(column, columns)}")
    if columns.count(column) > 1:
        raise ValueError(f"{name} has {columns.count(column)} columns {column!r}: rename all but one")
    return columns.index(column)


def separator_of(asked: str) -> str:
    """One character, or its name."""
    found = SEPARATORS.get(asked.lower(), "\t" if asked == "\\t" else asked)
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"separator={asked!r} should be one character, or one of {', '.join(SEPARATORS)}")
    return found


def open_file(
    path: Path,
    name: str,
    split: str | None,
    format: str,
    encoding: str,
    header: Sequence[str] | None,
    separator: str | None = None,
    sheet: str | None = None,
) -> Part:
    if format in ("csv", "tsv"):
        return Delimited(path, name, split, encoding, format == "tsv", header, None if separator is None else separator_of(separator))
    from tokmix.data.read.fasttext import FastText, is_fasttext
    from tokmix.data.read.json_rows import open_json
    from tokmix.data.read.sheets import Sqlite, Xlsx

    kinds: dict[str, Callable[..., Part]] = {"jsonl": open_json, "parquet": Parquet, "txt": Text, "xlsx": Xlsx, "sqlite": Sqlite}
    one_of("format", format, ["csv", "tsv", *kinds])
    if format in ("xlsx", "sqlite"):
        return kinds[format](path, name, split, encoding, sheet)
    if format == "txt" and is_fasttext(path, encoding):
        return FastText(path, name, split, encoding)
    return kinds[format](path, name, split, encoding)


def open_source(
    source: str | Path,
    *,
    format: str | None = None,
    pattern: str | None = None,
    header: Sequence[str] | None = None,
    encoding: str = "utf-8",
    subset: str | None = None,
    task: str | None = None,
    separator: str | None = None,
    sheet: str | None = None,
) -> list[Part]:
    """The parts of a file, a folder of files, a Hugging Face data set folder, standard input (-), or a
    data set on the Hugging Face hub (hub:NAME).

    A folder of texts sorted into folders by class is a table, unless the task asked for is another one."""
    if not str(source):
        raise ValueError("no file or folder was named: '' is empty")
    path = Path(source)
    if str(source).startswith(HUB):
        from tokmix.data.read import hub

        return hub.fetched(str(source).removeprefix(HUB), subset)
    if str(source) == stdin.NAME:
        path = stdin.spooled()
        format = format or stdin.format_of_content(path)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        from tokmix.data.read import hub

        if hub.is_saved(path):
            return hub.saved(path)
        found = _files(path, format, pattern)
        if classes := _by_class(path, found, encoding, task, format, pattern):
            return classes
    else:
        named = path.exists() or path.suffix.lower() in {*FORMATS, ".gz"} or path.is_absolute() or str(source).count("/") > 1
        hint = "" if named else f"; a data set of the Hugging Face hub is {HUB}{source}"
        raise ValueError(f"no file or folder {str(source)!r}{_beside(path)}{hint}")
    reading = (encoding, header, separator, sheet)
    parts = [_part(file, path, format, "txt" if pattern else None, *reading) for file in found]
    if len({isinstance(part, Text) for part in parts}) > 1:
        raise ValueError(f"{source} holds both tables and plain text; name one kind with pattern, for instance pattern='*.csv'")
    return parts


def _by_class(
    root: Path, found: Sequence[Path], encoding: str, task: str | None, format: str | None, pattern: str | None
) -> list[Part] | None:
    """With a pattern it has to be asked for: a tree of sources is sorted into folders too, and not by class."""
    if task != "classify" and (task is not None or pattern is not None):
        return None
    if any((format or format_of(file) or "txt") != "txt" for file in found):
        return None
    from tokmix.data.read.class_folders import class_folders

    return class_folders(root, found, encoding)


def format_of(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _part(
    file: Path,
    root: Path,
    format: str | None,
    fallback: str | None,
    encoding: str,
    header: Sequence[str] | None,
    separator: str | None,
    sheet: str | None,
) -> Part:
    name = file.name if file == root else str(file.relative_to(root))
    kind = format or format_of(file) or fallback
    if kind is None:
        packed = "unpack it first (.gz alone is read packed); " if file.suffix.lower() in PACKED else ""
        known = f"known: {', '.join(sorted(FORMATS))} (also .gz), or say format="
        raise ValueError(f"{file}: cannot tell the format from the name; {packed}{known}")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty")
    return open_file(file, name, split_of_path(name), kind, encoding, header, separator, sheet)


def _files(folder: Path, format: str | None, pattern: str | None) -> list[Path]:
    # Records that a data set's publisher keeps beside the data are not data.
    records = {"dataset_infos.json", "dataset_info.json", "state.json", "dataset_dict.json", "config.json", "package.json"}
    every = sorted(file for file in folder.rglob(pattern or "*") if file.is_file())
    shown = [file for file in every if not any(piece.startswith(".") for piece in file.relative_to(folder).parts)]
    found = [file for file in shown if pattern or ((format or format_of(file)) and file.name not in records)]
    if not found:
        raise ValueError(
            f"{folder} holds no file {'like ' + pattern if pattern else 'that ends in ' + ', '.join(sorted(FORMATS))} (also .gz)"
        )
    return found


def _beside(path: Path) -> str:
    """The nearest name in the folder where something was looked for."""
    return nearest(path.name, [entry.name for entry in path.parent.iterdir()]) if path.parent.is_dir() else ""
