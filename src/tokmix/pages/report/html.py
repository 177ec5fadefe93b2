"""Pieces of a page by Jinja2 with escaping: a label named <script> is shown as text. Each returns HTML that is safe to join."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from tokmix.show.text import short as with_unit
from tokmix.study.explain.words import Piece

MISSING = "–"


@cache
def environment() -> Environment:
    return Environment(loader=PackageLoader("tokmix.pages.report"), autoescape=True)


def _part(name: str, *given: object) -> str:
    macro = getattr(environment().get_template("parts.html").module, name)
    return str(macro(*given))


def text(value: object) -> str:
    """Escaped for an element's content and for a quoted attribute."""
    return str(escape(str(value)))


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the number it is sorted by. markup: HTML instead of the text, already escaped."""

    shown: str
    value: float | None = None
    strong: bool = False
    markup: str | None = None

    @property
    def inside(self) -> str | Markup:
        return self.shown if self.markup is None else Markup(self.markup)

    @property
    def number(self) -> str:
        return repr(self.value)


def cell(value: object) -> Cell:
    """Numbers with few digits, sorted by the exact value; None as a dash."""
    if isinstance(value, Cell):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return Cell(MISSING)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Cell(str(value))
    return Cell(short(value), float(value))


def short(value: float) -> str:
    """1234567 -> '1.23 M'; 0.81234 -> '0.8123'."""
    if isinstance(value, int) and abs(value) < 10_000:
        return str(value)
    return with_unit(value, 3) if abs(value) >= 999.5 else f"{value:.4g}"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """A table whose columns can be sorted; empty if there are no rows."""
    if not rows:
        return ""
    cells = [[cell(value) for value in row] for row in rows]
    assert all(len(row) == len(heads) for row in cells), (heads, rows)
    numeric = [any(row[at].value is not None for row in cells) for at in range(len(heads))]
    return _part("table", heads, cells, numeric, caption)


def pairs(known: Mapping[str, object]) -> str:
    """Names and values as a definition list."""
    return _part("pairs", known)


def section(name: str, title: str, *parts: str) -> str:
    """Empty if all parts are empty."""
    inside = "\n".join(one for one in parts if one)
    return _part("section", name, title, Markup(inside)) if inside else ""


def paragraph(words: str, kind: str = "") -> str:
    return _part("paragraph", words, kind)


def details(title: str, inside: str) -> str:
    return _part("details", title, Markup(inside)) if inside else ""


def words(name: str, answer: str, texts: Sequence[Sequence[Piece]], lines: Sequence[str]) -> str:
    """A model's answer and its text with shaded words."""
    return _part("words", name, answer, texts, lines)


def chart(name: str, label: str) -> str:
    """Where the page's script draws the chart of that name."""
    return _part("chart", name, label)


def data(known: object) -> str:
    """JSON inside a page. '<' is escaped so that it cannot end the block; NaN becomes null, because JSON has no NaN."""
    return json.dumps(_plain(known), ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
