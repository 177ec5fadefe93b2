"""Tables that other programs keep: a sheet of an Excel workbook (.xlsx), a table of an SQLite database."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile, ZipFile

from tokmix.core.checks import one_of
from tokmix.core.optional import need
from tokmix.data.read.files import File, place

if TYPE_CHECKING:
    from openpyxl import Workbook


MOST_UNPACKED = 200  # times its size that a workbook may unpack to: text packs to a tenth, a file made to harm to a thousandth


class _Sheets(File):
    """A file of several tables, of which one is read: the only one, or the one that `sheet` names."""

    unit = "row"

    def __init__(self, path: Path, name: str, split: str | None, encoding: str, sheet: str | None = None):
        super().__init__(path, name, split, encoding)
        self.sheet = sheet

    def _names(self) -> list[str]:
        raise NotImplementedError

    @cached_property
    def chosen(self) -> str:
        names = self._names()
        if self.sheet is not None:
            one_of(f"sheet of {self.name}:", self.sheet, names)
            return self.sheet
        if len(names) != 1:
            shown = ", ".join(names) or "none"
            raise ValueError(f"{self.name} holds {len(names)} tables ({shown}): say which with sheet=NAME")
        return names[0]


class Xlsx(_Sheets):
    """Cells of a sheet; its first row names the columns. Numbers and dates come as text, as a csv would hold them."""

    @contextmanager
    def _book(self) -> Iterator[Workbook]:
        openpyxl = need("openpyxl", f"reading {self.name}")
        try:
            with ZipFile(self.path) as packed:
                size = sum(part.file_size for part in packed.infolist())
            if size > MOST_UNPACKED * self.path.stat().st_size + 2**26:
                raise ValueError(f"{self.name} unpacks to {size:,} bytes, more than {MOST_UNPACKED} times its size: it is not read")
            with closing(openpyxl.load_workbook(self.path, read_only=True, data_only=True)) as book:
                yield book
        except (BadZipFile, LookupError, OSError, EOFError, TypeError, ParseError, zlib.error) as error:
            raise ValueError(f"{self.name} is not an .xlsx workbook, or a damaged one: {error}") from None

    def _names(self) -> list[str]:
        with self._book() as book:  # not every program notes how many rows a sheet has
            return [sheet.title for sheet in book.worksheets if self.sheet is not None or sheet.max_row is None or sheet.max_row > 1]

    def columns(self) -> list[str]:
        for _, cells in self._records():
            while cells and cells[-1] is None:
                cells = cells[:-1]
            return [_text(cell) for cell in cells]
        raise ValueError(f"{self.name} is empty")

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        picked = [place(self.name, names, column) for column in columns]
        records = self._records()
        next(records)
        for number, cells in records:
            yield number, [_text(cells[i]) if i < len(cells) else "" for i in picked]

    def _records(self) -> Iterator[tuple[int, tuple[object, ...]]]:
        with self._book() as book:
            for number, cells in enumerate(book[self.chosen].iter_rows(values_only=True), 1):
                if any(cell is not None for cell in cells):
                    yield number, cells


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():  # a workbook keeps 3 as 3.0
        return str(int(cell))
    return str(cell).strip() if not isinstance(cell, str) else cell


class Sqlite(_Sheets):
    """A table or a view of a database, opened for reading alone."""

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)

    def _ask(self, question: str) -> Iterator[tuple[object, ...]]:
        try:
            with closing(self._open()) as base:
                yield from base.execute(question)
        except sqlite3.Error as error:
            raise ValueError(f"{self.name} cannot be read as an SQLite database: {error}") from None

    def _names(self) -> list[str]:
        made = self._ask("select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by name")
        return [str(name) for (name,) in made]

    def columns(self) -> list[str]:
        return [str(row[1]) for row in self._ask(f"pragma table_info({_quoted(self.chosen)})")]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        for column in columns:
            place(self.name, names, column)
        wanted = ", ".join(_quoted(column) for column in columns)
        for number, values in enumerate(self._ask(f"select {wanted} from {_quoted(self.chosen)}"), 1):
            yield number, list(values)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
