"""Plain text -> documents, in pieces of bounded size: a document, or a whole file, may be larger than memory.

A document ends at the marker <|endoftext|> or at the end of its file. To split a text that holds few documents (a book, a
dump of one file), a unit smaller than a document is needed: then it is cut into blocks, at blank lines where it has them,
and each block goes where its own hash says; neighbouring blocks of one split stay one document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tokmix.data.prepare.columns import Columns
from tokmix.data.prepare.rows import Chooser, LeftOut, examples
from tokmix.data.read.files import Part, Text
from tokmix.data.split import text_key

MARKER = "<|endoftext|>"
LARGEST = 2**16  # characters of a piece: bounds memory, and how much of a document its key is made of
FEW = 100  # with fewer documents than this, or one that is a tenth of everything, blocks are the unit of splitting


class Cut(NamedTuple):
    text: str
    first: bool  # whether a document begins here


class Piece(NamedTuple):
    """A cut and where it goes."""

    split: str
    key: int
    text: str
    first: bool  # whether a document begins here, in this split
    group: int | None = None  # key of the group, where groups were asked for


def cuts(chunks: Iterable[str], size: int = LARGEST) -> Iterator[Cut]:
    """The documents of one text, each in pieces of at most `size` characters that end at a line, if possible at a blank one.

    Newlines around a marker belong to the marker; every other character is handed on."""
    held: list[str] = []
    length, first = 0, True
    for line in _lines(chunks, size):
        if line is None:
            text = "".join(held).rstrip("\n")
            if text:
                yield Cut(text, first)
            held, length, first = [], 0, True
            continue
        if not held and first:
            line = line.lstrip("\n")
        if held and length + len(line) > size:
            yield Cut("".join(held), first)
            held, length, first = [], 0, False
        if line:
            held.append(line)
            length += len(line)
        if held and 2 * length > size and not line.strip():  # a blank line, and enough before it
            yield Cut("".join(held), first)
            held, length, first = [], 0, False
    if held:
        yield Cut("".join(held), first)


def _lines(chunks: Iterable[str], size: int) -> Iterator[str | None]:
    """Lines with their ends, cut where longer than `size`; None stands for a marker."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        *whole, rest = rest.split("\n")
        for line in whole:
            yield from _parts(line + "\n", size)
        if len(rest) > size + len(MARKER):
            # A marker may have begun at the end, and another may lie across the cut: neither is torn.
            whole_markers = rest.rfind(MARKER) + len(MARKER) if MARKER in rest else 0
            cut = max(len(rest) - len(MARKER), whole_markers)
            yield from _parts(rest[:cut], size)
            rest = rest[cut:]
    yield from _parts(rest, size)


def _parts(line: str, size: int) -> Iterator[str | None]:
    for i, part in enumerate(line.split(MARKER)):
        if i:
            yield None
        for start in range(0, len(part), size):
            yield part[start : start + size]


class Survey:
    """How many documents there are, and how large: what decides the unit of splitting."""

    def __init__(self) -> None:
        self.documents = self.characters = self.longest = self._current = 0

    def see(self, piece: Piece) -> None:
        if piece.first:
            self.documents += 1
            self._current = 0
        self._current += len(piece.text)
        self.characters += len(piece.text)
        self.longest = max(self.longest, self._current)

    def block(self) -> int | None:
        """Characters of a block where blocks are the unit, else None."""
        if self.documents >= FEW and self.longest * 10 < self.characters:
            return None
        return min(LARGEST, max(4096, self.characters // 500))


def text_pieces(part: Part, columns: Columns | None, choose: Chooser, left_out: LeftOut, block: int | None = None) -> Iterator[Piece]:
    """The documents of one part (of a plain text, or one for each row of a table), each piece with its split.

    A document's key is that of its first piece, so that no document has to fit in memory; a block has its own."""
    if not isinstance(part, Text):
        assert columns is not None
        for example in examples([part], columns, choose, left_out):
            yield Piece(example.split, example.key, example.texts[0], True, example.group)
        return
    key, before = 0, ""
    for text, first in cuts(part.chunks(), block or LARGEST):
        if first or block:
            key = text_key(text)
        split = choose(part.split, key)
        yield Piece(split, key, text, first or split != before)
        before = split
