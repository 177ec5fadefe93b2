"""What a target column holds, seen row by row, and which task it makes: classes, several labels a row, or scores."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence

from tokmix.core.checks import one_of
from tokmix.data.prepare.columns import SCORES, is_number

TASKS = ("classify", "multilabel", "regress", "lm", "mlm")
LABELLED = ("classify", "multilabel", "regress")  # tasks of rows with a target each
SET = "\x1f"  # stands behind each label of a row that has a list of them
BAR = "|"  # parts labels where their pieces recur
STRAY = 10  # as many numbers to a word are scores with a hole, not classes, where fractions or many numbers are among them
LARGEST = 1e30  # of a score, which is kept as a float32
MANY_NUMBERS = 20  # more distinct whole numbers than this are scores, unless they count classes: 0 to K - 1 or 1 to K


def joined(labels: Iterable[object]) -> str:
    """A list of labels as one value: a single one as it is."""
    names = sorted({str(label).strip() for label in labels} - {""})
    return names[0] if len(names) == 1 else SET.join(names) + SET


def listed(text: str) -> str:
    """A cell that spells a list, ["a", "b"] or ['a', 'b'], as `joined` writes it; other cells as they are."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(isinstance(one, (str, int)) for one in found):
            return joined(found)
    return text


def pieces(value: str, separator: str | None = None) -> list[str]:
    """The labels of one value."""
    if SET in value:
        return [piece for piece in value.split(SET) if piece]
    return [piece for part in value.split(separator) if (piece := part.strip())] if separator else [value]


def folded(label: str) -> str:
    """What is the same for labels that differ in case or blanks alone."""
    return "".join(label.split()).casefold()


class Targets:
    """Class names with counts, or numbers. Bounded in memory."""

    MOST = 1000  # more distinct values than this are no classes

    def __init__(self, separator: str | None = None) -> None:
        self.separator = separator  # between the labels of a cell, where one was named
        self.counts: dict[str, dict[str, int]] = {}  # value -> split -> rows
        self.first: dict[str, str] = {}  # value -> where it was first seen
        self.pieces: dict[str, dict[str, int]] = {}  # the same of the labels of rows that have several
        self.combinations: dict[str, dict[str, int]] = {}  # the same of the values that may be several labels
        self.sets = False  # some row has a list of labels, or several by the separator that was named
        self.many = self.fraction = False
        self.not_number: tuple[str, str] | None = None  # the first value that is no number, and where
        self.not_finite: tuple[str, str] | None = None
        self.low, self.high = float("inf"), float("-inf")
        self.numbers = self.words = self.rows = 0  # distinct values that are a number, and that are none; rows in all
        self.alias: dict[str, str] = {}  # spelling -> the class it counts as, where spellings are merged

    def see(self, value: str, split: str, where: str) -> None:
        self.rows += 1
        if SET in value or (self.separator or BAR) in value:
            self._see_set(value, split, where)
            self.not_number = self.not_number or (value.replace(SET, " "), where)
            return
        if not self.many:
            if value not in self.counts and len(self.counts) == self.MOST:
                self.many = True
            else:
                self.first.setdefault(value, where)
                row = self.counts.setdefault(value, {})
                row[split] = row.get(split, 0) + 1
                if row[split] > 1:
                    return  # everything below was noted the first time
        self._see_number(value, where)

    def _see_set(self, value: str, split: str, where: str) -> None:
        found = pieces(value, self.separator or BAR)
        self.sets |= SET in value or (self.separator is not None and len(found) > 1)
        for one, counts in [(value, self.combinations), *((piece, self.pieces) for piece in found)]:
            if one in counts or len(counts) <= self.MOST:
                self.first.setdefault(one, where)
                row = counts.setdefault(one, {})
                row[split] = row.get(split, 0) + 1

    def _see_number(self, value: str, where: str) -> None:
        try:
            number = float(value)
        except ValueError:
            self.not_number = self.not_number or (value, where)
            self.words += 1
            return
        self.numbers += 1
        if number - number != 0:  # nan or infinite
            self.not_finite = self.not_finite or (value, where)
            return
        self.fraction |= number != int(number)
        self.low, self.high = min(self.low, number), max(self.high, number)

    def task(self, column: str) -> str:
        if self.sets or self._bars_recur():
            return "multilabel"
        numbers = not self.not_number
        if self.not_number and self.words * STRAY <= self.numbers and (self.fraction or self.numbers > MANY_NUMBERS):
            value, where = self.not_number
            raise ValueError(
                f"{where}: {column} is {value!r} where others are numbers such as {self._number()}: "
                "give a number or leave the row out; task=classify makes each value a class"
            )
        if numbers and (self.fraction or self.many or column.lower() in SCORES or self.many_numbers):
            return "regress"
        return "classify"

    def _bars_recur(self) -> bool:
        """Whether most labels between bars stand alone or in another combination too: then a bar parts labels."""
        if not self.pieces:
            return False
        places: dict[str, int] = {}
        for value in [*self.combinations, *self.counts]:
            for piece in pieces(value, BAR):
                places[piece] = places.get(piece, 0) + 1
        return 2 * sum(places.get(piece, 0) > 1 for piece in self.pieces) > len(self.pieces)

    @property
    def many_numbers(self) -> bool:
        """Whole numbers, too many and not the ones that count classes."""
        if self.not_number or self.not_finite or self.fraction:
            return False
        distinct = {float(value) for value in self.counts}
        counted = self.low in (0, 1) and self.high - self.low + 1 == len(distinct) and self.rows >= 2 * len(distinct)
        return self.many or (len(distinct) > MANY_NUMBERS and not counted)

    def _number(self) -> str:
        """One with a fraction, where there is one."""
        numbers = [value for value in self.first if is_number(value)]
        return next((value for value in numbers if self.fraction and not float(value).is_integer()), numbers[0])

    def check(self, task: str, column: str) -> None:
        """One line where the column does not fit the task."""
        one_of("task", task, TASKS)
        if task == "regress":
            self._check_scores(column)
        elif task == "classify":
            if self.sets:
                raise ValueError(f"column {column!r} holds several labels a row: task=multilabel learns them")
            if self.not_finite and not self.not_number:
                raise ValueError(f"{self.not_finite[1]}: {column} is {self.not_finite[0]} among numbers: a missing label")
            if self.many:
                raise ValueError(
                    f"column {column!r} has more than {self.MOST} distinct values, too many for classes; name the label with label="
                )
            if len(self.counts) == 1:
                raise ValueError(f"every {column} is {next(iter(self.counts))!r}: a single class, so there is nothing to learn")
        elif task == "multilabel":
            count = len(self.names("multilabel"))
            if count < 2 or count > self.MOST:
                raise ValueError(f"column {column!r} has {count:,} distinct labels; task=multilabel takes 2 to {self.MOST}")

    def _check_scores(self, column: str) -> None:
        if self.not_number:
            raise ValueError(f"{self.not_number[1]}: {column} {self.not_number[0]!r} is not a number")
        if self.not_finite:
            raise ValueError(f"{self.not_finite[1]}: {column} is {self.not_finite[0]}; a score has to be a finite number")
        if (largest := max(abs(self.low), abs(self.high))) > LARGEST:
            raise ValueError(f"column {column!r} holds scores up to {largest:g}; they are learned in float32, up to {LARGEST:g}")
        if self.low == self.high:
            raise ValueError(f"every {column} is {self.low:g}: there is nothing to learn")

    def seen(self, task: str) -> dict[str, dict[str, int]]:
        """label -> split -> rows that have it."""
        if task != "multilabel":
            return self.counts
        found = {piece: dict(counts) for piece, counts in self.pieces.items()}
        for value, counts in self.counts.items():
            row = found.setdefault(value, {})
            for split, count in counts.items():
                row[split] = row.get(split, 0) + count
        return found

    def settle(self, task: str) -> None:
        """Once the task is known: of classes a bar is a letter like any other."""
        if task == "classify" and not self.sets:
            self.counts |= self.combinations
            self.many |= len(self.counts) > self.MOST
            self.combinations, self.pieces = {}, {}

    def merge(self, task: str, known: Sequence[str] | None = None) -> None:
        """Labels that differ in case or blanks alone count as one: the known one, else the commonest."""
        rows = {label: sum(counts.values()) for label, counts in self.seen(task).items()}
        chosen = {folded(label): label for label in sorted(rows, key=lambda label: (rows[label], label))}
        chosen |= {folded(label): label for label in known or ()}
        self.alias = {label: chosen[folded(label)] for label in rows if chosen[folded(label)] != label}

    def names(self, task: str, order: Sequence[str] | None = None) -> list[str]:
        """The classes: in the order the data set gives, else by number, else by name."""
        if order is not None:
            return list(order)
        found = {self.alias.get(name, name) for name in self.seen(task)}
        if not self.not_number and not self.not_finite:
            return sorted(found, key=lambda name: (float(name), name))
        return sorted(found)
