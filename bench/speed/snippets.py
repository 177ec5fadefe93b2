"""Snippets of Python's own standard library, labelled by their package: real text that every machine with Python has.

No source file gives snippets to both splits, no snippet occurs twice, and every class has the same number in each split. The
text of a snippet is unchanged; its origin is recorded separately.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokmix.data.split import text_key

# Of comparable size, with several files each, and part of every CPython from 3.11 on, also where a distribution ships it in pieces.
PACKAGES = ("asyncio", "email", "encodings", "importlib", "multiprocessing", "unittest", "xml")
LINES = 16  # of a snippet
SPOKEN = 8  # least lines with content
HELD = (0.15, 0.3)  # share of a package's snippets in the files kept for the test
FEWEST = 40  # least snippets per class for training
SKIPPED = ("test", "tests", "__pycache__")


@dataclass(frozen=True)
class Snippet:
    text: str
    label: str
    split: str
    file: str


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def collect(root: Path, most: int | None = None) -> list[Snippet]:
    """Balanced snippets of all packages under `root`, at most this many per class for training and a quarter of that for the test."""
    absent = [name for name in PACKAGES if not list((root / name).glob("*.py"))]
    if absent:
        raise ValueError(f"{root} holds no source of {', '.join(absent)}: this Python came without its standard library in readable form")
    seen: set[int] = set()
    found = {name: _divided(name, root, seen) for name in PACKAGES}
    counts = {split: min(len(parts[split]) for parts in found.values()) for split in ("train", "test")}
    if counts["train"] < FEWEST or counts["test"] < FEWEST // 4:
        raise ValueError(f"{root} holds too little source: {counts['train']} snippets a package for training, {counts['test']} to test on")
    if most is not None:
        counts = {"train": min(counts["train"], most), "test": min(counts["test"], most // 4)}
    kept = [one for parts in found.values() for split, count in counts.items() for one in _drawn(parts[split], count)]
    return sorted(kept, key=lambda one: (one.split, _draw(one.text)))


def write(path: Path, snippets: list[Snippet]) -> None:
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in snippets), encoding="utf-8")


def _divided(package: str, root: Path, seen: set[int]) -> dict[str, list[Snippet]]:
    """The snippets of a package by split; whole files go to the test until it has its share."""
    files = {str(path.relative_to(root)): _snippets(path, seen) for path in sorted((root / package).rglob("*.py")) if _wanted(path, root)}
    total, held = sum(map(len, files.values())), 0
    parts: dict[str, list[Snippet]] = {"train": [], "test": []}
    for name in sorted(files, key=_draw):
        fits = held < HELD[0] * total and held + len(files[name]) <= HELD[1] * total
        held += len(files[name]) * fits
        split = "test" if fits else "train"
        parts[split] += [Snippet(text, package, split, Path(name).as_posix()) for text in files[name]]
    return parts


def _wanted(path: Path, root: Path) -> bool:
    return not any(piece in SKIPPED for piece in path.relative_to(root).parts)


def _snippets(path: Path, seen: set[int]) -> list[str]:
    """A file's text in pieces of LINES lines, without duplicates and those with little content."""
    return [text for text in _pieces(path) if not _known(text, seen)]


def _pieces(path: Path) -> Iterator[str]:
    try:
        with tokenize.open(path) as file:
            lines = file.read().splitlines()
    except (OSError, SyntaxError, UnicodeDecodeError):  # skip files that Python itself could not read
        return
    for start in range(0, len(lines) - LINES + 1, LINES):
        piece = lines[start : start + LINES]
        if sum(bool(line.strip()) for line in piece) >= SPOKEN:
            yield "\n".join(piece).strip("\n")


def _known(text: str, seen: set[int]) -> bool:
    key = text_key(text)
    known = key in seen
    seen.add(key)
    return known


def _drawn(snippets: list[Snippet], count: int) -> list[Snippet]:
    return sorted(snippets, key=lambda one: _draw(one.text))[:count]


def _draw(text: str) -> str:
    """A pseudo-random order that is the same on every machine."""
    return hashlib.sha256(text.encode()).hexdigest()
