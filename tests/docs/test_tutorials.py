"""Every block of every tutorial runs, in order, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages

ROOT = Path(__file__).parent.parent.parent
TUTORIALS = [ROOT / "docs" / "tour.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_block_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.blocks(page)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    pages.run(page, folder)


def test_a_page_that_shows_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for shown, good in (("1 b ... 3\n", True), ("1 b 4\n", False)):
        page.write_text(f"```python\nx = 3\n```\n\n```python\nprint(1, 'b', 2, x)\n```\n```text\n{shown}```\n\n```sh\ntrue\n```\n")
        if good:
            pages.run(page, tmp_path)
        else:
            with pytest.raises(AssertionError, match=r"page\.md:6 shows"):
                pages.run(page, tmp_path)
    page.write_text("```sh\nfalse | cat\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2 ends with 1"):
        pages.run(page, tmp_path)
