"""The Markdown of every page: blocks are closed, tables are tables, lines end at 120 characters, paragraphs are not lists of numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^ *```")
WIDTH, MOST_NUMBERS = 120, 3
# How many paragraphs of a page still have more numbers than MOST_NUMBERS. The numbers may fall and must not rise.
CROWDED = {
    "docs/huggingface.md": 1,
}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists()]


PAGES = tracked()
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(text: str) -> list[str]:
    """The lines outside of fenced blocks; AssertionError where a block holds the beginning of another, or is never closed."""
    lines, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            assert not fenced or line.strip() == "```", (
                f"line {number}: {line.strip()} stands inside of a block: one before it is not closed"
            )
            fenced = not fenced
            lines.append("")
        else:
            lines.append("" if fenced else line)
    assert not fenced, "the last block is not closed"
    return lines


def paragraphs(lines: list[str]) -> list[str]:
    """Paragraphs and items of lists; no tables, headings, comments, pictures, nor indented blocks."""
    found, parts = [], list[str]()
    for line in [*lines, ""]:
        begins = re.match(r"\s*([-*]|\d+\.) ", line) is not None
        apart = not line.strip() or line.startswith(("|", "#", "<", "![", "    "))
        if (begins or apart) and not (parts and line.startswith("    ") and line.strip()):
            found, parts = [*found, " ".join(parts)] if parts else found, []
        if not apart or (parts and line.strip()):
            parts.append(line.strip())
    return found


def numbers(paragraph: str) -> list[str]:
    """What a reader has to compare; no code, addresses, years, nor numbers that are part of a name (H200, fp16, Table 1)."""
    plain = re.sub(
        r"`[^`]*`|\]\([^)]*\)|arXiv \d+\.\d+|\b(19|20)\d\d\b|\b(Table|Figure|Figures|version|Python|step|torch|triton) [\d.]+",
        "",
        paragraph,
    )
    return re.findall(r"(?<![\w.,/^-])[-+−]?\d[\d,]*(?:\.\d+)?(?:%|k|M)?(?![\w^])", plain)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_closed_and_tables_are_tables(page: Path) -> None:
    for line in prose(page.read_text(encoding="utf-8")):
        broken = re.search(r"\|\s*:?-{3,}:?\s*\|", line) and not re.fullmatch(r"\|(\s*:?-{3,}:?\s*\|)+", line.strip())
        assert not broken, f"a table in one line: {line[:80]}"


WIDE = {"reproduce/beyond/README.md", "reproduce/hsm/README.md", "reproduce/hypermixer/README.md", "reproduce/hypermlp/README.md"}


@pytest.mark.parametrize("page", [page for name, page in zip(NAMES, PAGES, strict=True) if name not in WIDE], ids=str)
def test_lines_end_at_120(page: Path) -> None:
    """Except tables, code, pictures and lines without a place to break."""
    long = [
        line
        for line in prose(page.read_text(encoding="utf-8"))
        if len(line) > WIDTH and not line.startswith(("|", "    ", "![", "<details>")) and " " in line.strip()[:100].removeprefix("- ")
    ]
    assert not long, long[:3]


def test_no_paragraph_is_a_list_of_numbers() -> None:
    crowded = {}
    for name, page in zip(NAMES, PAGES, strict=True):
        found = [one for one in paragraphs(prose(page.read_text(encoding="utf-8"))) if len(numbers(one)) > MOST_NUMBERS]
        if len(found) > CROWDED.get(name, 0):
            crowded[name] = (len(found), [one[:60] for one in found])
    assert not crowded, crowded
    mended = [name for name, count in CROWDED.items() if count and name not in NAMES]
    assert not mended, f"not there any more: take {mended} out of CROWDED"


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_the_scripts_of_the_site_pass_the_linter(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "ruff", *words, *(ROOT / "docs").glob("*.py")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_rules_find_what_they_are_for() -> None:
    with pytest.raises(AssertionError, match="not closed"):
        prose("text\n```\n\n```sh\ntrue\n```\n")
    with pytest.raises(AssertionError, match="last block"):
        prose("```sh\ntrue\n")
    text = "3 s, 4.5 s,\n6 s and 7,000 µs on an H200 in fp16.\n\n- in 2023, arXiv 2203.03691: `1 2 3`\n- 1 %\n\n    1 2 3 4\n\n| 1 | 2 |\n"
    assert [len(numbers(one)) for one in paragraphs(prose(text))] == [4, 0, 1]
