"""The README's numbers, commands and figure, the table of mixers in docs/README.md and the floors in docs/design.md say what is there."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tokmix
from tokmix.cli.commands import COMMANDS
from tokmix.cli.main import command_parser
from tokmix.core.mixer import MODES, mixer_class

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "README.md").read_text()


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_table_lists_every_mixer_with_its_order_and_modes() -> None:
    table = INDEX.split("<!-- mixers -->")[1].split("<!-- end -->")[0]
    rows = {match[1]: match for match in re.finditer(r"^\| \[`(\w+)`\]\(([^)]+)\) \| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)}
    assert sorted(rows) == tokmix.mixers()
    for name, row in rows.items():
        cls = mixer_class(name)
        assert (ROOT / "docs" / row[2]).exists()
        assert row[3].strip() == cls.order.replace("^2", "²")
        shown = {"both": "bidirectional"}
        modes = {shown.get(mode, mode) for mode in row[4].strip().split(", ")}
        assert modes | {"padded", "packed"} == cls.modes & set(MODES), name


def test_the_page_on_design_names_every_floor() -> None:
    named = set(re.findall(r"\]\(\.\./src/tokmix/(\w+)\)", (ROOT / "docs" / "design.md").read_text()))
    assert named == {path.name for path in (ROOT / "src" / "tokmix").iterdir() if (path / "__init__.py").exists()}


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets


@pytest.mark.slow
def test_the_first_screen_shows_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the table of the tour. Times and probabilities depend on the machine."""
    monkeypatch.chdir(tmp_path)
    exec((ROOT / "docs" / "tour.md").read_text().split("```python\n")[1].split("```")[0], {})
    screen = README.split("```console\n")[1].split("```")[0].splitlines()
    called = [shlex.split(line, comments=True)[2:] for line in screen if line.startswith("$ tokmix ")]
    printed = [
        subprocess.run([sys.executable, "-m", "tokmix", *words], capture_output=True, text=True, check=True, timeout=3000)
        for words in called
    ]
    trained, predicted = (one.stdout + one.stderr for one in printed)
    shown = next(line for line in screen if line.startswith("on test: ")).split("trained in")[0]
    assert shown in trained
    told, found = (json.loads(next(line for line in lines if line.startswith("{"))) for lines in (screen, predicted.splitlines()))
    assert (told["text"], told["label"]) == (found["text"], found["label"])
    assert told["probabilities"].keys() == found["probabilities"].keys() and found["probabilities"][found["label"]] > 0.5


def test_the_results_are_those_of_the_page_on_accuracy() -> None:
    shown = cells(README.split("<!-- results -->")[1].split("<!-- /results -->")[0])
    measured = cells((ROOT / "docs" / "accuracy.md").read_text().split("<!-- tables -->")[1].split("<!-- end -->")[0])
    assert len(shown) >= 5
    for name, (figure, rival, seconds) in shown.items():
        assert (figure, rival, seconds) == (measured[name][2], measured[name][6], measured[name][7]), name


def test_the_figure_is_drawn_from_the_results(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    figures = runpy.run_path(str(ROOT / "docs" / "site_figures.py"))
    committed = (ROOT / figures["README_FIGURE"]).read_text()
    if f"v{matplotlib.__version__}," not in committed:
        pytest.skip("drawn by another release of matplotlib")
    figures["write_readme_figure"](tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text() == committed, "python docs/site_figures.py draws it again"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The lines of a page that call `tokmix`, continued lines joined, comments cut."""
    text = page.read_text().replace("\\\n", " ")
    shells = [found[2] for found in FENCE.finditer(text) if found[1] in ("", "sh", "console")]
    indented = re.findall(r"^    .*$", FENCE.sub("", text), re.MULTILINE)
    lines = (line.strip().removeprefix("$ ") for line in "\n".join([*shells, *indented]).splitlines())
    return [re.split(r"\s{2,}#| #|  | [<>|] |…", line)[0] for line in lines if re.match(r"tokmix [a-z-]+( |$)", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_can_be_read(page: Path) -> None:
    """Commands, options and their values exist as the page spells them."""
    for line in commands(page):
        words = shlex.split(line)
        if words[1] not in COMMANDS:
            pytest.fail(f"{page.name}: no command {words[1]!r} in {line!r}")
        known = set(command_parser(words[1])._option_string_actions)
        for word in words[2:]:
            name = word.split("=")[0]
            if name.startswith("--") and name != "--":
                plain = name.replace("--no-", "--", 1)
                assert name in known or plain in known, f"{page.name}: `tokmix {words[1]}` has no option {name}: {line}"
