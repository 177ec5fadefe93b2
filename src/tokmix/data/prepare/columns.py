"""Which columns of a table hold text and label, and which task they make: guessed from the header, overridable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokmix.core.checks import one_of
from tokmix.data.read.files import place

TASKS = ("classify", "regress", "lm", "mlm")
PAIRS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("question", "passage"), ("query", "passage"),
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "review", "body", "comment", "document", "message", "tweet", "snippet", "utterance",
         "question", "article", "description", "abstract", "title")  # fmt: skip
LABELS = ("label", "labels", "class", "category", "target", "intent", "sentiment", "topic", "tag", "gold_label", "coarse_label", "y")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "rating", "stars", "value")
STRAY = 10  # as many numbers to a word, and fractions among them, are scores with a hole, not classes
LARGEST = 1e30  # of a score, which is kept as a float32
IGNORED = ("", "id", "idx", "index", "guid", "uid", "uuid", "pairid", "row", "split", "url", "unnamed: 0")


@dataclass(frozen=True)
class Columns:
    text: tuple[str, ...]  # one, or two for a pair
    target: str | None = None
    split: str | None = None
    group: str | None = None  # rows of one group stay in one split
    weight: str | None = None  # how much a row counts in the loss

    def all(self) -> list[str]:
        return [*self.text, *(column for column in (self.target, self.split, self.group, self.weight) if column)]


def choose_columns(
    name: str,
    columns: Sequence[str],
    *,
    task: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    group: str | None = None,
    weight: str | None = None,
) -> Columns:
    """The columns asked for (each checked), and guesses for the rest."""
    known = _Known(name, columns)
    texts = _asked(text, columns)
    for asked in (*texts, label, split, group, weight):
        if asked is not None:
            _check(name, columns, asked)
    if len(texts) > 2:
        raise ValueError(f"text={text!r} names {len(texts)} columns; one, or two for a pair, can be used")
    split = split or known.first(("split",), {*texts, label, group, weight}, "split_column")
    target = label or (None if task in ("lm", "mlm") else known.first((*LABELS, *SCORES), {*texts, split, group, weight}, "label"))
    if target in texts or len(set(texts)) < len(texts):
        raise ValueError(f"{name}: column {target if target in texts else texts[0]!r} is named twice among the texts and the label")
    taken = {target, split, group, weight}
    texts = texts or _guess_text(known, taken)
    rest = [column for column in columns if column not in {*taken, *texts} and column.lower() not in IGNORED]
    if not texts:
        if len(rest) != 1:
            raise ValueError(_unclear(name, columns, "text", "text=COLUMN (or text=ONE,OTHER for a pair)"))
        texts, rest = (rest[0],), []
    if target is None and task not in ("lm", "mlm"):
        if len(rest) > 1 or (not rest and task):
            raise ValueError(_unclear(name, columns, "the label or score", "label=COLUMN, or task=lm where there is none"))
        target = rest[0] if rest else None
    return Columns(texts, target, split, group, weight)


def _asked(text: str | Sequence[str] | None, columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(text, str):
        return (text,) if text in columns else tuple(piece.strip() for piece in text.split(","))
    return tuple(text or ())


class _Known:
    """Columns by name, whatever the case of their letters."""

    def __init__(self, file: str, columns: Sequence[str]):
        self.file, self.columns = file, list(dict.fromkeys(columns))

    def has(self, name: str, taken: set[str | None]) -> bool:
        return bool(self._called(name, taken))

    def first(self, names: Sequence[str], taken: set[str | None], option: str) -> str | None:
        """The column that has the first of the names that is there. Two that differ in case alone are for the user to choose from."""
        found = next((called for name in names if (called := self._called(name, taken))), [])
        if len(found) > 1:
            raise ValueError(f"{self.file} has the columns {' and '.join(map(repr, found))}: say which with {option}=COLUMN")
        return found[0] if found else None

    def _called(self, name: str, taken: set[str | None]) -> list[str]:
        return [column for column in self.columns if column.lower() == name and column not in taken]


def _guess_text(known: _Known, taken: set[str | None]) -> tuple[str, ...]:
    pair = next((pair for pair in PAIRS if all(known.has(name, taken) for name in pair)), None)
    found = [known.first((name,), taken, "text") for name in pair] if pair else [known.first(TEXTS, taken, "text")]
    return tuple(column for column in found if column)


def _check(name: str, columns: Sequence[str], asked: str) -> None:
    if asked not in columns and looks_like_data(columns):
        raise ValueError(_no_header(name, columns))
    place(name, columns, asked)


def looks_like_data(columns: Sequence[str]) -> bool:
    """Whether a first line reads like a row and not like names: a number, or something as long as a sentence."""
    return any(_is_number(column) or len(column) > 60 or len(column.split()) > 3 for column in columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _no_header(name: str, columns: Sequence[str]) -> str:
    shown = " | ".join(column[:30] for column in columns[:5])
    return f"{name} has no header line: its first line is {shown!r}; add one, or name the columns with header=text,label"


def _unclear(name: str, columns: Sequence[str], what: str, option: str) -> str:
    if looks_like_data(columns):
        return _no_header(name, columns)
    shown = ", ".join(columns)
    return f"{name}: cannot tell which column is {what} among {shown}; say {option} (no header line? name the columns with header=)"


class Targets:
    """What a target column holds, seen row by row: class names with counts, or numbers. Bounded in memory."""

    MOST = 1000  # more distinct values than this are no classes

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}  # value -> split -> rows
        self.first: dict[str, str] = {}  # value -> where it was first seen
        self.many = self.fraction = False
        self.not_number: tuple[str, str] | None = None  # the first value that is no number, and where
        self.not_finite: tuple[str, str] | None = None
        self.low, self.high = float("inf"), float("-inf")
        self.numbers = self.words = 0  # distinct values that are a number, and that are none

    def see(self, value: str, split: str, where: str) -> None:
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
        numbers = not self.not_number
        if self.not_number and self.fraction and self.words * STRAY <= self.numbers:
            value, where = self.not_number
            raise ValueError(
                f"{where}: {column} is {value!r} where others are numbers such as {self._fraction()}: "
                "give a number or leave the row out; task=classify makes each value a class"
            )
        if numbers and (self.fraction or self.many or column.lower() in SCORES):
            return "regress"
        return "classify"

    def _fraction(self) -> str:
        return next(value for value in self.first if _is_number(value) and not float(value).is_integer())

    def check(self, task: str, column: str) -> None:
        """One line where the column does not fit the task."""
        one_of("task", task, TASKS)
        if task == "regress":
            if self.not_number:
                raise ValueError(f"{self.not_number[1]}: {column} {self.not_number[0]!r} is not a number")
            if self.not_finite:
                raise ValueError(f"{self.not_finite[1]}: {column} is {self.not_finite[0]}; a score has to be a finite number")
            if (largest := max(abs(self.low), abs(self.high))) > LARGEST:
                raise ValueError(f"column {column!r} holds scores up to {largest:g}; they are learned in float32, up to {LARGEST:g}")
            if self.low == self.high:
                raise ValueError(f"every {column} is {self.low:g}: there is nothing to learn")
        elif task == "classify":
            if self.not_finite and not self.not_number:
                raise ValueError(f"{self.not_finite[1]}: {column} is {self.not_finite[0]} among numbers: a missing label")
            if self.many:
                raise ValueError(
                    f"column {column!r} has more than {self.MOST} distinct values, too many for classes; name the label with label="
                )
            if len(self.counts) == 1:
                raise ValueError(f"every {column} is {next(iter(self.counts))!r}: a single class, so there is nothing to learn")

    def names(self, order: Sequence[str] | None = None) -> list[str]:
        """The classes: in the order the data set gives, else by number, else by name."""
        if order is not None:
            return list(order)
        if not self.not_number and not self.not_finite:
            return sorted(self.counts, key=lambda name: (float(name), name))
        return sorted(self.counts)
