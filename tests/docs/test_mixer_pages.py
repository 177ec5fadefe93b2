"""The page of each mixer begins with its idea, and has a drawing and its cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tokmix

DOCS = Path(__file__).parent.parent.parent / "docs"
DRAWN = re.compile(r"^    .*(──|─>|█)", re.MULTILINE)


def page_of(name: str) -> str:
    (found,) = [text for page in DOCS.glob("*.md") if f"`{name}`" in (text := page.read_text(encoding="utf-8")).splitlines()[0]]
    return found


def sections(text: str) -> dict[str, str]:
    """What stands under each heading of the second level; the beginning under ''."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("name", tokmix.mixers())
def test_a_mixers_page_has_its_idea_a_drawing_and_its_cost(name: str) -> None:
    found = sections(page_of(name))
    first = found[""].split("\n\n")[1]
    assert len(first.split()) > 15 and not first.startswith(("|", "    ", "-")), f"the page of {name} begins with words: {first!r}"
    assert DRAWN.search(found["Formula"]), f"the page of {name} has no drawing under its formula"
    assert {"matmul", "state", "parameters"} <= set(re.findall(r"\w+", found["Cost"])) or name in ("hsm", "identity", "shared_vector")
    assert "FLOPs" in found["Cost"] and "state" in found["Cost"]
