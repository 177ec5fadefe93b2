"""The README's table and file tree say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import tokmix
from tokmix.core.mixer import MODES, mixer_class

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_table_lists_every_mixer_with_its_order_and_modes() -> None:
    table = README.split("<!-- mixers -->")[1].split("<!-- end -->")[0]
    rows = {match[1]: match for match in re.finditer(r"^\| \[`(\w+)`\]\(([^)]+)\) \| ([^|]+) \| ([^|]+) \|", table, re.MULTILINE)}
    assert sorted(rows) == tokmix.mixers()
    for name, row in rows.items():
        cls = mixer_class(name)
        assert (ROOT / row[2]).exists()
        assert row[3].strip() == cls.order.replace("^2", "²")
        shown = {"both": "bidirectional"}
        modes = {shown.get(mode, mode) for mode in row[4].strip().split(", ")}
        assert modes | {"padded", "packed"} == cls.modes & set(MODES), name


def test_the_file_tree_exists() -> None:
    tree = README.split("## The house")[1]
    named = set(re.findall(r"\b([a-z_]+\.py)\b", tree))
    there = {path.name for path in (ROOT / "src" / "tokmix").rglob("*.py")} | {path.name for path in (ROOT / "tests").glob("*.py")}
    assert named <= there, named - there
    top = {path.name for path in (ROOT / "src" / "tokmix").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert top <= named, top - named


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets
