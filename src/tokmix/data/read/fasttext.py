"""fastText's training files: `__label__sport __label__news some words`, a row a line, with one label or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokmix.data.read.files import File, place
from tokmix.data.read.lines import lines

MARK = "__label__"
COLUMNS = ["text", "label"]


def is_fasttext(path: Path, encoding: str) -> bool:
    """Whether the first line that says something begins with a label."""
    first = next((line for _, line in lines(path, encoding) if line.strip()), "")
    return first.lstrip().startswith(MARK)


class FastText(File):
    """A table of two columns: the text, and the list of its labels."""

    def columns(self) -> list[str]:
        return list(COLUMNS)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        for column in columns:
            place(self.name, COLUMNS, column)
        for number, line in lines(self.path, self.encoding):
            if line.strip():
                values = _parsed(line)
                yield number, [values[column] for column in columns]


def _parsed(line: str) -> dict[str, str | list[str]]:
    labels, rest = list[str](), line.strip()
    while rest.startswith(MARK):
        word, _, rest = rest.partition(" ")
        labels.append(word.removeprefix(MARK).strip())
        rest = rest.lstrip()
    return {"text": rest, "label": labels}
