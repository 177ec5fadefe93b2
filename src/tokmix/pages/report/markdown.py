"""As much of Markdown as the tables of papers use, as HTML: paragraphs, headings, lists, tables, what is folded away, code, bold. Links
and pictures become their words: a page needs no other file."""

from __future__ import annotations

import re

from tokmix.pages.report import html
from tokmix.pages.report.html import Cell

LINK, PICTURE = re.compile(r"\[([^\]]*)\]\([^)]*\)"), re.compile(r"!\[[^\]]*\]\([^)]*\)\s*")
SPAN = re.compile(r"`([^`]+)`|\*\*(.+?)\*\*")
NUMBER = re.compile(r"[<>+~-]?\s*(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?=$|[\s(,;%*†])", re.IGNORECASE)
BAR = re.compile(r"(?<!\\)\|")
FOLDED = re.compile(r"<details><summary>([^<]*)</summary>")
VERDICTS = {"holds": "good", "does not hold": "bad", "unclear": "open", "not run": "open"}  # -> how it looks


def render(text: str) -> str:
    """Blocks are parted by empty lines."""
    return "\n".join(_block(block.splitlines()) for block in re.split(r"\n\s*\n", text.strip()) if PICTURE.sub("", block).strip())


def _block(lines: list[str]) -> str:
    """A table, a list, a heading, or a paragraph; what follows a table or a heading without an empty line is a block of its own."""
    first, rest = lines[0], 1
    if folded := FOLDED.fullmatch(first.strip()):
        made = f"<details><summary>{inline(folded[1])}</summary>"
    elif first.strip() == "</details>":
        made = "</details>"
    elif first.startswith("#"):
        made = f"<h4>{inline(first.lstrip('# '))}</h4>"
    elif len(lines) > 1 and first.startswith("|") and set(lines[1]) <= set("|-: "):
        rest = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
        made = _table(lines[:rest])
    elif first.startswith("- "):
        points, rest = re.split(r"\n- ", "\n".join(lines)[2:]), len(lines)
        made = "<ul>" + "".join(f"<li>{inline(point)}</li>" for point in points) + "</ul>"
    else:
        rest = next((at for at, line in enumerate(lines) if at and line.startswith(("- ", "|"))), len(lines))
        made = f"<p>{inline(' '.join(lines[:rest]))}</p>"
    return made + (f"\n{_block(lines[rest:])}" if lines[rest:] else "")


def inline(text: str) -> str:
    """Escaped, but for code and bold."""
    parts, at = [], 0
    text = _plain(text)
    for found in SPAN.finditer(text):
        parts.append(html.text(text[at : found.start()]))
        parts.append(f"<code>{html.text(found[1])}</code>" if found[1] else _bold(found[2]))
        at = found.end()
    return "".join([*parts, html.text(text[at:])])


def _bold(words: str) -> str:
    look = f' class="{VERDICTS[words]}"' if words in VERDICTS else ""
    return f"<strong{look}>{inline(words)}</strong>"


def _plain(text: str) -> str:
    """Without links, pictures and the strokes that keep a star a star."""
    return re.sub(r"\\([*|_])", r"\1", LINK.sub(r"\1", PICTURE.sub("", text)))


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in BAR.split(line.strip())[1:-1]] for line in lines]
    width = len(rows[0])
    body = [[_cell(cell, first=at == 0) for at, cell in enumerate(row)] for row in rows[2:] if len(row) == width]
    return html.table([re.sub(r"\*\*|`", "", _plain(head)) for head in rows[0]], body)


def _cell(text: str, first: bool) -> Cell:
    """The first column names the row; the others are sorted by the number they begin with."""
    words = _plain(text)
    found = None if first else NUMBER.match(words.strip("*"))
    sign = -1 if words.startswith("-") else 1
    return Cell(words, sign * float(found[1].replace(",", "")) if found else None, markup=inline(text))
