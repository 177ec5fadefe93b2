"""Rows of JSON: an object a line, or one array of objects, however its lines run. Either is read a piece at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tokmix.data.read.files import File, Part, place
from tokmix.data.read.lines import LONGEST_LINE, chunks, lines

T = TypeVar("T")
FIRST = 100  # objects whose keys are the columns: the first alone may lack some


def open_json(path: Path, name: str, split: str | None, encoding: str) -> Part:
    first = next((text.lstrip()[0] for text in chunks(path, encoding) if text.strip()), "")
    return (JsonArray if first == "[" else JsonLines)(path, name, split, encoding)


class JsonLines(File):
    def columns(self) -> list[str]:
        return list(self._keys)

    @cached_property
    def _keys(self) -> list[str]:
        keys = list(dict.fromkeys(key for _, row in islice(self._objects(), FIRST) for key in row))
        if not keys:
            raise ValueError(f"{self.name} is empty")
        return keys

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        for column in columns:
            place(self.name, names, column)
        for number, row in self._objects():
            missing = [column for column in columns if column not in row]
            if missing:
                other = "other columns are named with text= and label=, and task=lm needs no label"
                raise ValueError(f"{self.where(number)}: has no {missing[0]!r}; it has {', '.join(row)} ({other})")
            yield number, [row[column] for column in columns]

    def _objects(self) -> Iterator[tuple[int, dict[str, object]]]:
        for number, line in lines(self.path, self.encoding):
            if not line.strip():
                continue
            try:
                row = self._decoded(number, json.loads, line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{self.where(number)}: not JSON ({error.msg})") from None
            yield number, self._checked(number, row, line)

    def _decoded(self, number: int, decode: Callable[[str], T], written: str) -> T:
        """JSON that is right and beyond what Python reads is an error here; JSON that is wrong, or not whole, is the caller's."""
        try:
            return decode(written)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise ValueError(f"{self.where(number)}: lists or objects within each other, too many to read") from None
        except ValueError:  # Python reads whole numbers up to a length
            raise ValueError(f"{self.where(number)}: a whole number with too many digits to read") from None

    def _checked(self, number: int, row: object, written: str) -> dict[str, object]:
        if not isinstance(row, dict):
            raise ValueError(f'{self.where(number)}: {type(row).__name__} where an object such as {{"text": ...}} was expected')
        if "\\ud" in written.lower():  # half of a surrogate pair is valid JSON and invalid text
            row = {key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for key, value in row.items()}
        inner = {f"{key}.{name}": one for key, value in row.items() if isinstance(value, dict) for name, one in value.items()}
        return {**inner, **row} if inner else row  # a field of an object in a row is a column called data.text


class JsonArray(JsonLines):
    unit = "object"

    def _objects(self) -> Iterator[tuple[int, dict[str, object]]]:
        for number, (row, written) in enumerate(self._items(), 1):
            yield number, self._checked(number, row, written)

    def _items(self) -> Iterator[tuple[object, str]]:
        """(value, how it was written) of each item of the array; no more than one item and a piece of the file in memory."""
        decoder, pieces, done = json.JSONDecoder(), chunks(self.path, self.encoding), 0
        rest = _more("", pieces)[1:]
        while True:
            rest = _more(rest, pieces)
            if rest.startswith("]"):
                return self._end(done, _more(rest[1:], pieces))
            if done:
                if not rest.startswith(","):
                    raise ValueError(f"{self.where(done)}: not JSON (a comma or ] should follow)")
                rest = _more(rest[1:], pieces)
            value, end, rest = self._decode(decoder, rest, pieces, done + 1)
            yield value, rest[:end]
            rest, done = rest[end:], done + 1

    def _decode(self, decoder: json.JSONDecoder, rest: str, pieces: Iterator[str], number: int) -> tuple[object, int, str]:
        """The next value, reading on as long as it is not whole -> (value, where it ends in the text, that text)."""
        while True:
            try:
                value, end = self._decoded(number, decoder.raw_decode, rest)
                return value, end, rest
            except json.JSONDecodeError as error:
                more = next(pieces, None)
                if more is None or len(rest) > LONGEST_LINE:
                    raise ValueError(f"{self.where(number)}: not JSON ({error.msg})") from None
                rest += more

    def _end(self, done: int, behind: str) -> None:
        if behind:
            raise ValueError(f"{self.name}: there is more behind the end of the array")
        if not done:
            raise ValueError(f"{self.name} is an empty array")


def _more(rest: str, pieces: Iterator[str]) -> str:
    """The text from its next visible character on, reading on where there is none; empty at the end of the file."""
    while not (rest := rest.lstrip()) and (piece := next(pieces, None)) is not None:
        rest = piece
    return rest
