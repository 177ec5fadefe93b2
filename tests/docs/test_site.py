"""The documentation site builds without a warning, no link in it is dead, and people who use a keyboard or a screen reader can read it."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests import browser

pytest.importorskip("sphinx")
pytest.importorskip("furo")

ROOT = Path(__file__).parent.parent.parent
LOOKED_AT = ("index", "hypermixing", "tutorials/classify_a_table", "generated/benchmarks", "generated/python_api")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {name for name in (found.get("id"), found.get("name")) if name}
        self.links += [link for link in (found.get("href"), found.get("src")) if link]


def test_no_link_is_dead(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link == "#":
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not other.exists() or (parts.fragment and other in pages and unquote(parts.fragment) not in pages[other].names):
                dead.append(f"{path.relative_to(site)} -> {link}")
    assert not dead, dead[:20]


def test_every_tutorial_is_a_notebook(site: Path) -> None:
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    for page in tutorials:
        found = list(site.rglob(f"{page.stem}.ipynb"))
        assert found, page.stem
        cells = json.loads(found[0].read_text())["cells"]
        assert any(cell["cell_type"] == "code" for cell in cells) and any(cell["cell_type"] == "markdown" for cell in cells)


def test_every_command_and_public_name_has_its_section(site: Path) -> None:
    import tokmix
    from tokmix.cli.commands import COMMANDS

    names = Page(site / "generated" / "commands.html").names
    assert {f"tokmix-{name}" for name in COMMANDS} <= names
    api = (site / "generated" / "python_api.html").read_text()
    assert all(f"{name}<a" in api for name in tokmix.__all__[1:])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_fault(site: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with browser.open_browser() as chromium:
        page = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme).new_page()
        faults = []
        for name in LOOKED_AT:
            page.goto(f"file://{site}/{name}.html")
            found = axe.Axe().run(page).response["violations"]
            faults += [(name, one["id"], len(one["nodes"])) for one in found if one["impact"] in ("serious", "critical")]
        assert not faults


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_its_window(site: Path, width: int) -> None:
    with browser.open_browser() as chromium:
        page = chromium.new_context(viewport={"width": width, "height": 900}).new_page()
        for path in sorted(site.rglob("*.html")):
            page.goto(f"file://{path}")
            over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert over <= 0, f"{path.relative_to(site)} is {over} px wider than a window of {width}"
