"""Pieces of a page. Everything that comes from a file passes through `text`: a label named <script> stays a name."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MISSING = "–"
RIGHT = ' class="number"'


def text(value: Any) -> str:
    """Escaped for an element's content and for a quoted attribute."""
    return html.escape(str(value), quote=True)


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it is sorted by. markup: HTML in place of what is shown, escaped by whoever made it."""

    shown: str
    value: float | None = None
    strong: bool = False
    markup: str | None = None


def cell(value: Any) -> Cell:
    """Numbers in a few digits, the exact one for sorting; None as a dash."""
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
    for size, prefix in PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.4g}"


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """A table whose columns can be sorted; nothing where there are no rows."""
    if not rows:
        return ""
    lines = ['<div class="wide"><table class="sortable">']
    cells = [[cell(value) for value in row] for row in rows]
    assert all(len(row) == len(heads) for row in cells), (heads, rows)
    numeric = [any(row[at].value is not None for row in cells) for at in range(len(heads))]
    lines.append("<thead><tr>" + "".join(_head(head, right) for head, right in zip(heads, numeric, strict=True)) + "</tr></thead><tbody>")
    for row in cells:
        lines.append("<tr>" + "".join(_cell(one, right) for one, right in zip(row, numeric, strict=True)) + "</tr>")
    lines.append("</tbody></table></div>" + paragraph(caption, "note"))
    return "\n".join(lines)


def _head(name: str, right: bool) -> str:
    button = f'<button type="button">{text(name)}</button>' if name else ""  # nobody can tell what a button without words does
    return f'<th scope="col"{RIGHT * right}>{button}</th>'


def _cell(one: Cell, right: bool) -> str:
    shown = text(one.shown) if one.markup is None else one.markup
    shown = f"<strong>{shown}</strong>" if one.strong else shown
    value = f' data-value="{one.value!r}"' if one.value is not None else ""
    return f"<td{RIGHT * right}{value}>{shown}</td>"


def pairs(known: dict[str, Any]) -> str:
    """Names and values as a definition list."""
    return (
        "<dl>"
        + "".join(f"<dt>{text(name)}</dt><dd>{text(MISSING if value is None else value)}</dd>" for name, value in known.items())
        + "</dl>"
    )


def section(name: str, title: str, *parts: str) -> str:
    """Nothing where all parts are empty."""
    inside = "\n".join(one for one in parts if one)
    return f'<section id="{text(name)}"><h2>{text(title)}</h2>\n{inside}\n</section>' if inside else ""


def paragraph(words: str, kind: str = "") -> str:
    return f'<p class="{text(kind)}">{text(words)}</p>' if words else ""


def details(title: str, inside: str) -> str:
    return f"<details><summary>{text(title)}</summary>\n{inside}\n</details>" if inside else ""


def chart(name: str, label: str) -> str:
    """Where the page's script draws the chart of that name."""
    return f'<figure class="chart" data-chart="{text(name)}" aria-label="{text(label)}"></figure>'


def data(known: Any) -> str:
    """JSON inside a page: no '<' can end the block, and NaN, which JSON has not, is null."""
    return json.dumps(_plain(known), ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
