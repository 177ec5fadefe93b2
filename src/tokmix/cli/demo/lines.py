"""Neighbouring lines of Python's own standard library, in order or swapped: a task that needs the order, on text that every machine has.

No source file gives pairs to both splits, and no pair occurs twice, in either order.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

SHORTEST = 8  # letters of a line
TESTED = 5  # one file of so many is kept for the test
MOST = {"train": 14_000, "test": 3_000}
FEWEST = 1_000  # pairs: fewer show nothing
IN_ORDER, SWAPPED = "in order", "swapped"
APART = {"test", "tests", "__pycache__", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "pydoc_data"}


@dataclass(frozen=True)
class Pair:
    text1: str
    text2: str
    label: str
    split: str
    file: str


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def collect(root: Path, most: dict[str, int] | None = None) -> list[Pair]:
    """At most so many pairs for each split, from all source files under `root`."""
    seen: set[tuple[str, str]] = set()
    found: list[Pair] = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not APART & set(place.parts):
            found += _pairs(path, place.as_posix(), seen)
    if len(found) < FEWEST:
        raise ValueError(f"{root} holds too little source: this Python came without its standard library in readable form")
    found.sort(key=lambda pair: draw(pair.text1 + "\n" + pair.text2))
    return [pair for split, count in (most or MOST).items() for pair in [one for one in found if one.split == split][:count]]


def write(path: Path, pairs: list[Pair]) -> None:
    path.write_text("".join(json.dumps(asdict(pair)) + "\n" for pair in pairs), encoding="utf-8")


def _pairs(path: Path, name: str, seen: set[tuple[str, str]]) -> Iterator[Pair]:
    """Pairs of neighbouring lines of one block, without comments. The swapped ones look random and are the same on every machine."""
    split = "test" if int(draw(name), 16) % TESTED == 0 else "train"
    lines = _lines(path)
    for above, below in pairwise(lines):
        one, other = above.strip(), below.strip()
        same_block = len(above) - len(above.lstrip()) == len(below) - len(below.lstrip())
        says_something = min(len(one), len(other)) >= SHORTEST and not one.startswith("#") and ("=" in one or "(" in one)
        if not same_block or not says_something or one == other or (one, other) in seen or (other, one) in seen:
            continue
        seen.add((one, other))
        swapped = int(draw(one + other), 16) % 2 == 1
        yield Pair(other, one, SWAPPED, split, name) if swapped else Pair(one, other, IN_ORDER, split, name)


def draw(text: str) -> str:
    """A number that looks random and is the same everywhere."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(path: Path) -> list[str]:
    try:
        with tokenize.open(path) as file:
            return file.read().splitlines()
    except (OSError, SyntaxError, UnicodeDecodeError):  # skip a file that Python itself cannot read
        return []
