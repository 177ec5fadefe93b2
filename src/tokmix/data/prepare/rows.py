"""Rows of tables -> examples: texts, target, key and split, checked one by one. The same for preparing and for evaluating."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tokmix.data.prepare.columns import Columns
from tokmix.data.prepare.targets import SET, joined, listed
from tokmix.data.read.files import UNLABELLED, Part
from tokmix.data.split import split_of_name, text_key

MISSING = ("nan", "<na>", "nat")  # how pandas writes an empty cell
NOTHING = ("", "-1", "-1.0", "-", "?")  # how data sets write a label that they keep to themselves
Chooser = Callable[[str | None, int], str]  # (the split a row was given in, its group's or text's key) -> its split


class Example(NamedTuple):
    part: Part
    number: int  # line or row in its file
    texts: tuple[str, ...]
    target: str | None
    split: str
    key: int  # of the text
    group: int | None  # key of the group, where groups were asked for
    weight: float | None = None  # in the loss, where a column was asked for

    @property
    def where(self) -> str:
        return self.part.where(self.number)


class LeftOut:
    """Rows that cannot be used, counted by reason."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1

    def __str__(self) -> str:
        return ", ".join(f"{count:,} rows with {reason}" for reason, count in self.counts.items())


def examples(parts: Sequence[Part], columns: Columns, choose: Chooser, left_out: LeftOut) -> Iterator[Example]:
    wanted, n = columns.all(), len(columns.text)
    for part in parts:
        for number, values in part.rows(wanted):
            texts = tuple([text_of(part, number, column, value) for column, value in zip(columns.text, values, strict=False)])
            extra = dict(zip(wanted[n:], values[n:], strict=True))
            if not any(text and not text.isspace() for text in texts):
                left_out.add("no text")
                continue
            target = _target(part, number, columns.target, extra[columns.target]) if columns.target else None
            if columns.target and target is None:
                left_out.add("no label")
                continue
            given = _given(part, number, columns.split, extra[columns.split]) if columns.split else part.split
            key = text_key(*texts)
            # A group's rows follow the group; the row's own key stays that of its text, by which overlap is counted.
            group = text_key(str(extra[columns.group])) if columns.group else None
            weight = _weight(part, number, columns.weight, extra[columns.weight]) if columns.weight else None
            yield Example(part, number, texts, target, choose(given, key if group is None else group), key, group, weight)


def text_of(part: Part, number: int, column: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        whole = '; a row is an object such as {"text": ...}: one a line, or an array of them' if isinstance(value, (list, dict)) else ""
        raise ValueError(f"{part.where(number)}: column {column!r} holds {type(value).__name__}, not text{whole}")
    return value


def _target(part: Part, number: int, column: str, value: object) -> str | None:
    """The label or score of a row, several as `joined` writes them; None where the cell is empty."""
    if isinstance(value, dict) or (isinstance(value, list) and not all(isinstance(one, (str, int)) for one in value)):
        kind = type(value).__name__
        raise ValueError(f"{part.where(number)}: column {column!r} holds {kind}; a label, a score or a list of labels is needed")
    if isinstance(value, list):
        return joined(value)
    if value is None or value is UNLABELLED:
        return None
    written = str(value).strip().replace(SET, " ")
    return None if written.lower() in MISSING else listed(written) or None


def _weight(part: Part, number: int, column: str, value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise ValueError(f"{part.where(number)}: column {column!r} is {value!r}; a weight is a finite number of at least 0")
    return weight


def _given(part: Part, number: int, column: str, value: object) -> str:
    split = split_of_name(str(value))
    if split is None:
        raise ValueError(f"{part.where(number)}: column {column!r} is {value!r}; a split is train, valid (or validation, dev) or test")
    return split


def no_label(part: Part, column: str, train: Sequence[Part]) -> str | None:
    """What stands in the label column of a part without labels: one and the same sign of nothing, which train does not have; else None."""
    labels = _labels(part, column)
    first = next(labels, None)
    if first not in NOTHING or any(label != first for label in labels):
        return None
    return first if not first or all(label != first for other in train for label in _labels(other, column)) else None


def _labels(part: Part, column: str) -> Iterator[str]:
    for _, (value,) in part.rows([column]):
        yield "" if value is None or value is UNLABELLED else str(value).strip()
