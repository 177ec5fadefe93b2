"""Markdown of the papers' tables as HTML, by markdown-it-py. Tables can be sorted. Links and pictures become text, because the
page is a single file. Raw HTML is escaped, except for folded parts (<details>)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markdown_it.utils import EnvType, OptionsDict

from tokmix.pages.report import html
from tokmix.pages.report.html import Cell

NUMBER = re.compile(r"[<>+~-]?\s*(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?=$|[\s(,;%*†])", re.IGNORECASE)
FOLDED = re.compile(r"^(?:<details><summary>([^<]*)</summary>|</details>)$", re.MULTILINE)
AFTER_TABLE = re.compile(r"^(\|.*)\n(?=[^|\n])", re.MULTILINE)
VERDICTS = {"holds": "good", "does not hold": "bad", "unclear": "open", "not run": "open"}  # -> how it looks


class _Renderer(RendererHTML):
    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return ""

    link_close = image = link_open

    def strong_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        look = VERDICTS.get(tokens[idx + 1].content)
        return f'<strong class="{look}">' if look else "<strong>"


_READER = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def render(text: str) -> str:
    parts, at = [], 0
    for found in FOLDED.finditer(text):
        parts += [_blocks(text[at : found.start()]), f"<details><summary>{inline(found[1])}</summary>" if found[1] else "</details>"]
        at = found.end()
    return "\n".join(part for part in [*parts, _blocks(text[at:])] if part)


def inline(text: str) -> str:
    return str(_READER.renderInline(text))


def _blocks(text: str) -> str:
    """A line without a bar ends a table, even without an empty line between them."""
    tree = SyntaxTreeNode(_READER.parse(AFTER_TABLE.sub(r"\1\n\n", text)))
    made = (_block(node).strip() for node in tree.children)
    return "\n".join(part for part in made if part and part != "<p></p>")


def _block(node: SyntaxTreeNode) -> str:
    if node.type == "table":
        return _table(node)
    made = str(_READER.renderer.render(node.to_tokens(), _READER.options, {}))
    return re.sub(r"(</?)h\d>", r"\1h4>", made) if node.type == "heading" else made


def _table(node: SyntaxTreeNode) -> str:
    heads, *rows = ([cell.children[0] for cell in row.children] for part in node.children for row in part.children)
    body = [[_cell(cell, first=at == 0) for at, cell in enumerate(row)] for row in rows]
    return html.table([_words(head) for head in heads], body)


def _cell(node: SyntaxTreeNode, first: bool) -> Cell:
    """The first column names the row; the others are sorted by the number they begin with."""
    words = _words(node)
    found = None if first else NUMBER.match(words)
    sign = -1 if words.startswith("-") else 1
    return Cell(words, sign * float(found[1].replace(",", "")) if found else None, markup=inline(node.content))


def _words(node: SyntaxTreeNode) -> str:
    return "".join(part.content for part in node.walk() if part.type in ("text", "code_inline"))
