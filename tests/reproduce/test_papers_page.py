"""Results of papers on the report's page: Markdown as HTML, and the page in a real browser."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reproduce import markdown
from tests import browser as browsers
from tests import needs
from tests.papers_made_up import HYPER, install, put, results_file
from tokmix.cli.main import main
from tokmix.pages.report import write


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a **b** `c<d`", "<p>a <strong>b</strong> <code>c&lt;d</code></p>"),
        ("see [x](y.md) **does not hold**", '<p>see x <strong class="bad">does not hold</strong></p>'),
        ("![p](f.svg)", ""),
        ("- a\n  b\n- c", "<ul>\n<li>a\nb</li>\n<li>c</li>\n</ul>"),
        ("<details><summary>more</summary>\n\n2\\*\n\n</details>", "<details><summary>more</summary>\n<p>2*</p>\n</details>"),
        ("<b>", "<p>&lt;b&gt;</p>"),
    ],
)
def test_markdown(text: str, made: str) -> None:
    assert markdown.render(text) == made


def test_a_table_of_markdown_can_be_sorted() -> None:
    made = markdown.render("| a | b |\n|---|---|\n| 1 x | 82.1 (0.3) |\n| y\\|z | -3.5% |\n| q | not run |\n| r | < 0.001 |\nand on")
    assert re.findall(r'data-value="([^"]*)"', made) == ["82.1", "-3.5", "0.001"]
    assert "y|z" in made and made.endswith("<p>and on</p>")


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsers.open_browser() as found:
        yield found


def test_the_results_page_in_a_browser(paper: Path, browser: Any) -> None:
    """Everything of a results file is on the page, in light and on a phone in dark, without a network."""
    needs.package("matplotlib")
    put(paper / "results", results_file(complete=False))
    assert main(["report", "reproduce", "--out", "page.html"]) == 0
    for size, dark in ((browsers.DESKTOP, False), (browsers.PHONE, True)):
        with browsers.open_page(browser, Path("page.html").resolve().as_uri(), size, dark) as shown:
            text = shown.inner_text("main")
            for words in ("Paper: hypermixer", "table1: a table", "hyper <script>", HYPER, "1 of 4 jobs are not run", "Not run: tokmix"):
                assert words in text
            assert shown.locator("strong.open").inner_text() == "not run"
            picture = shown.locator("img.picture")
            assert picture.count() == 1 and picture.evaluate("image => image.naturalWidth") > 300
            shown.locator("summary", has_text="every run").click()
            shown.locator("figure.chart svg").first.wait_for(state="attached")  # drawn when it comes into sight
            assert shown.locator("figure.chart svg").count() == 1 and "attention-search" in shown.inner_text("main")


def test_every_run_has_the_parameters_of_its_own_model(paper: Path) -> None:
    made = results_file()
    for job in made["jobs"]:
        job["outcome"] |= {
            "parameters": {"none": 62337, "hyper": 71234},
            "runs": [{**run, "model": "hyper"} for run in job["outcome"]["runs"]],
        }
    put(paper / "results", made)
    text = write([paper], "page.html").read_text()
    assert 'data-value="71234.0"' in text and "62337" not in text


def test_the_page_takes_one_paper_or_a_quick_folder(paper: Path) -> None:
    quick = put(paper.parent.parent / "reproduce-quick" / "hypermixer", results_file(quick=True))
    assert "its numbers mean nothing" in write([quick], "page.html").read_text()
    put(paper / "results", results_file(failed=True))
    text = write([paper], "page.html").read_text()
    assert "no luck" in text and base64.b64encode(b"<?xml version").decode()[:12] in text
    (paper / "figures").mkdir()
    with pytest.raises(ValueError, match="holds no results of papers"):
        write([paper / "figures"], "page.html")
