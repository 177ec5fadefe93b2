"""The documentation against the code: options, modes and defaults, every Python block, every relative link."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import re
from pathlib import Path

import pytest
import torch

import tokmix
from tokmix.core.mixer import MODES, mixer_class, options

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *sorted(ROOT.glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
PRINTED_WITHIN = 0.1  # other machines round, and may draw, other random numbers


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def title(page: Path) -> str:
    return page.read_text().splitlines()[0]


def page_of(name: str) -> Path:
    found = [page for page in DOCS if name in named(title(page))]
    assert len(found) == 1, f"one page under docs/ should name `{name}` in its title, not {[page.name for page in found]}"
    return found[0]


def section(page: Path, start: str, name: str) -> str:
    """What stands under the heading that begins with `start` and names `name`, up to the next heading."""
    parts = re.split(r"^(#+ .*)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    found = [
        body
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
        if heading.lstrip("# ").startswith(start) and name in named(heading)
    ]
    assert len(found) == 1, f"{page.name} should have one heading '{start} ... `{name}`', not {len(found)}"
    return found[0]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    rules = {at for at, row in enumerate(cells) if set("".join(row)) <= set("-:")}
    return [row for at, row in enumerate(cells) if at not in rules and at + 1 not in rules]


def documented(text: str) -> list[tuple[str, str]]:
    """(name, default) of each row; a meaning has to be there too."""
    table = rows(text)
    assert all(len(row) == 3 and row[2] for row in table), f"rows should be name, default, meaning: {table}"
    return [(row[0].strip("`"), row[1].strip("`")) for row in table]


def defaults(parameters: dict[str, inspect.Parameter]) -> list[tuple[str, str]]:
    missing = inspect.Parameter.empty
    return [(name, "required" if given.default is missing else repr(given.default)) for name, given in parameters.items()]


@pytest.mark.parametrize("name", tokmix.mixers())
def test_every_option_of_every_mixer_is_documented_with_its_default(name: str) -> None:
    assert documented(section(page_of(name), "Options of", name)) == defaults(options(name))


def test_the_page_on_reliability_has_the_counts_of_the_last_campaign() -> None:
    known = json.loads((ROOT / "tests" / "campaign" / "last.json").read_text())
    counted = [[one["name"], *(str(one[name]) for name in ("tried", "held", "clean", "wrong"))] for one in known["tallies"]]
    shown = [row for row in rows((ROOT / "docs" / "reliability.md").read_text()) if len(row) == 5]
    assert sorted(shown) == sorted(counted)


@pytest.mark.parametrize("name", tokmix.mixers())
def test_every_mixers_page_states_its_order_and_modes(name: str) -> None:
    cls = mixer_class(name)
    stated = [row for row in rows(FENCE.sub("", page_of(name).read_text())) if row[0] == f"`{name}`"]
    assert stated == [[f"`{name}`", cls.order, ", ".join(mode for mode in MODES if mode in cls.modes)]]


@pytest.mark.parametrize("name", tokmix.mixers())
def test_every_mixer_is_in_the_index(name: str) -> None:
    links = [row[0] for row in rows((ROOT / "docs" / "README.md").read_text()) if row[0].startswith(f"[`{name}`]")]
    assert links == [f"[`{name}`]({page_of(name).name})"]


def test_the_fields_of_a_model_are_documented() -> None:
    fields = {
        field.name: "required" if field.default is dataclasses.MISSING else repr(field.default)
        for field in dataclasses.fields(tokmix.ModelConfig)
    }
    assert documented(section(ROOT / "docs" / "models.md", "Fields of", "ModelConfig")) == list(fields.items())


def test_the_arguments_of_generate_are_documented() -> None:
    assert documented(section(ROOT / "docs" / "models.md", "Arguments of", "generate")) == defaults(
        dict(inspect.signature(tokmix.generate).parameters)
    )


def blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """(line, code, what it should print) of each Python block; a `text` block right below it is what it prints."""
    text, found = page.read_text(), []
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences, None][1:], strict=True):
        if fence[1] == "python":
            printed = after[2] if after is not None and after[1] == "text" and after.start() == fence.end() else None
            found.append((text[: fence.start()].count("\n") + 2, fence[2], printed))
    return found


TOUR = "tour.md"  # its blocks go on from each other: tests/docs/test_tutorials.py
BLOCKS = [pytest.param(page, *block, id=f"{page.name}:{block[0]}") for page in PAGES if page.name != TOUR for block in blocks(page)]


@pytest.mark.usefixtures("clean_registry")
@pytest.mark.parametrize(("page", "line", "code", "printed"), BLOCKS)
def test_every_python_block_runs(
    page: Path, line: int, code: str, printed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "__main__"})
    if printed is not None:
        same_print(output.getvalue(), printed)


def same_print(got: str, shown: str) -> None:
    """The same words, and numbers that are near."""
    assert NUMBER.sub("#", got).split() == NUMBER.sub("#", shown).split()
    for a, b in zip(NUMBER.findall(got), NUMBER.findall(shown), strict=True):
        x, y = (float(number.replace(",", "")) for number in (a, b))
        assert abs(x - y) <= PRINTED_WITHIN * abs(y), f"printed {a}, but the page shows {b}:\n{got}"


@pytest.mark.parametrize(("got", "good"), [("a 1.05 b 1,000", True), ("a 1.2 b 1,000", False), ("a 1 c 1,000", False), ("a 1", False)])
def test_what_is_printed_is_compared(got: str, good: bool) -> None:
    with contextlib.nullcontext() if good else pytest.raises(AssertionError):
        same_print(got, "a 1 b 1000\n")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings; the names of a file of measurements."""
    if page.suffix == ".jsonl":
        return {json.loads(line)["name"] for line in page.read_text(encoding="utf-8").splitlines()}
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(other), f"{page.name} links to {target}; headings there: {sorted(anchors(other))}"
