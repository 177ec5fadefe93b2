"""Which columns of a table hold text and label, and which task they make: guessed from the header, overridable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokmix.data.read.files import place

PAIRS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("question", "passage"), ("query", "passage"),
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "review", "body", "comment", "document", "message", "tweet", "snippet", "utterance",
         "question", "article", "description", "abstract", "title")  # fmt: skip
LABELS = ("label", "labels", "class", "category", "target", "intent", "sentiment", "topic", "tag", "gold_label", "coarse_label", "y")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "rating", "stars", "value")
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
            both = "" if target or task in ("lm", "mlm") else " and label=COLUMN"
            raise ValueError(_unclear(name, columns, "text", f"text=COLUMN (or text=ONE,OTHER for a pair){both}"))
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
    return tuple(column for names in ([(one,) for one in pair] if pair else [TEXTS]) if (column := known.first(names, taken, "text")))


def _check(name: str, columns: Sequence[str], asked: str) -> None:
    if asked not in columns and looks_like_data(columns):
        raise ValueError(_no_header(name, columns))
    place(name, columns, asked)


def looks_like_data(columns: Sequence[str]) -> bool:
    """Whether a first line reads like a row and not like names: a number, or something as long as a sentence."""
    return any(is_number(column) or len(column) > 60 or len(column.split()) > 3 for column in columns)


def is_number(text: str) -> bool:
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
