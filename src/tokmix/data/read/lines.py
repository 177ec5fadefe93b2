"""Bytes of a file -> text, a bounded piece at a time, with the line number of whatever is wrong."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

CHUNK = 2**20  # bytes read at once
LONGEST_LINE = 2**26  # a row of a table larger than this is a mistake (an unclosed quote, a file that is no table)


def is_packed(path: Path) -> bool:
    """Whether it is gzip by its first bytes, because the name may be wrong."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where it is gzip."""
    return cast(BinaryIO, gzip.open(path, "rb")) if is_packed(path) else open(path, "rb")


class _Recoded(io.RawIOBase):
    """Bytes of an encoding whose line ends are several bytes (UTF-16, UTF-32), as UTF-8: `readline` looks for one byte."""

    def __init__(self, file: BinaryIO, name: str | Path, encoding: str):
        self.file, self.name, self.decoder, self.held = file, name, codecs.getincrementaldecoder(encoding)(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self.held:
            data = self.file.read(CHUNK)
            try:
                self.held = self.decoder.decode(data, final=not data).encode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.name}: not {error.encoding} ({error.reason}); name its encoding, for instance utf-8") from None
            if not data and not self.held:
                return 0
        taken, self.held = self.held[: len(buffer)], self.held[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _utf8(file: BinaryIO, name: str | Path, encoding: str, head: bytes) -> tuple[BinaryIO, str]:
    """(the file, its encoding), read as UTF-8 where a mark at its start or the encoding says that characters are wide."""
    plain = "\n".encode(encoding) == b"\n"
    if plain and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding, plain = ("utf-32" if head.startswith(codecs.BOM_UTF32_LE) else "utf-16"), False
    if plain:
        return file, encoding
    return cast(BinaryIO, io.BufferedReader(_Recoded(file, name, encoding), CHUNK)), "utf-8"


@contextmanager
def _text_file(path: Path, encoding: str) -> Iterator[tuple[BinaryIO, str]]:
    """(the file's bytes, the encoding they are to be read by)"""
    _check_encoding(encoding)
    try:
        with open_bytes(path) as file:
            head = file.read(8192)
        with open_bytes(path) as file:
            readable, known = _utf8(file, path, encoding, head)
            if b"\0" in head and readable is file:
                raise ValueError(f"{path} is a binary file, not text (or UTF-16 without its mark: encoding=utf-16-le reads that)")
            if head.startswith(codecs.BOM_UTF8):
                file.read(len(codecs.BOM_UTF8))
            yield readable, known
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}") from None


def lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its end) of a text file, one line in memory at a time."""
    with _text_file(path, encoding) as (file, known):
        yield from decoded(file, path, known)


def decoded(file: BinaryIO, name: str | Path, encoding: str) -> Iterator[tuple[int, str]]:
    """The same of bytes that come from anywhere, standard input for instance."""
    _check_encoding(encoding)
    file, encoding = _utf8(file, name, encoding, b"")
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{name}, line {number}: longer than {LONGEST_LINE >> 20} MiB")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            raise ValueError(_undecodable(name, number, error)) from None
        yield number, text


def chunks(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The text of a file in pieces of about a megabyte, cut anywhere: for text whose lines have no bounded length."""
    ends = 0  # line ends so far
    with _text_file(path, encoding) as (file, known):
        decoder = codecs.getincrementaldecoder(known)()
        while True:
            data = file.read(CHUNK)
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise ValueError(_undecodable(path, ends + error.object[: error.start].count(b"\n") + 1, error)) from None
            ends += data.count(b"\n")
            if text:
                yield text
            if not data:
                return


def _check_encoding(encoding: str) -> None:
    try:
        "\n".encode(encoding)
    except LookupError:
        raise ValueError(f"unknown encoding {encoding!r}; known are Python's, such as utf-8, utf-16, latin-1, cp1252") from None


def _undecodable(path: str | Path, number: int, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    likely = "cp1252" if 0x80 <= byte < 0xA0 else "latin-1"  # signs such as curly quotes, which latin-1 does not have
    return f"{path}, line {number}: byte 0x{byte:02x} is not {error.encoding}; name the file's encoding, for instance encoding={likely}"
