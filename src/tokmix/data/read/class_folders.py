"""Texts sorted into folders by class: FOLDER/pos/*.txt and FOLDER/neg/*.txt, or the same below train, valid and test.

A file is a row, the folder it lies in its label.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokmix.data.read.files import Part, place
from tokmix.data.read.lines import LONGEST_LINE, chunks
from tokmix.data.split import split_of_name

COLUMNS = ["text", "label"]
UNSORTED = ("unsup", "unlabeled", "unlabelled", "unsupervised")  # folders of texts without a class
FEWEST = 2  # files of a class: a folder for every text is no class
STRAYS = 0.01  # share of files elsewhere (lists, notes) that may be left out


class ClassFolders(Part):
    """The files of one split."""

    def __init__(self, name: str, split: str | None, root: Path, files: Sequence[tuple[Path, str]], encoding: str):
        super().__init__(name, split)
        self.root, self.files, self.encoding = root, list(files), encoding

    def where(self, number: int) -> str:
        return str(self.files[number - 1][0].relative_to(self.root))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path, _ in self.files:
            digest.update(path.relative_to(self.root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def columns(self) -> list[str]:
        return list(COLUMNS)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        for column in columns:
            place(self.name, COLUMNS, column)
        for number, (path, label) in enumerate(self.files, 1):
            values = {"text": self._text(path) if "text" in columns else "", "label": label}
            yield number, [values[column] for column in columns]

    def _text(self, path: Path) -> str:
        if path.stat().st_size > LONGEST_LINE:
            raise ValueError(f"{path} is larger than {LONGEST_LINE >> 20} MiB, too much for one row")
        return "".join(chunks(path, self.encoding)) if path.stat().st_size else ""


def class_folders(root: Path, files: Sequence[Path], encoding: str) -> list[Part] | None:
    """The splits of such a folder; None where the files do not lie so."""
    sorted_, strays, unsorted = _sort(root, files)
    counts = Counter(label for places in sorted_.values() for _, label in places)
    if len(counts) < 2 or min(counts.values()) < FEWEST or len(strays) > STRAYS * len(files):
        return None
    if len(sorted_) > 1 and None in sorted_:  # some below train or test, some not: no layout of classes
        return None
    parts: list[Part] = [
        ClassFolders(f"{root.name}[{split}]" if split else root.name, split, root, places, encoding) for split, places in sorted_.items()
    ]
    parts[0].notes += [*_left_out(root, strays, "outside the folders of classes"), *_left_out(root, unsorted, "without a class")]
    return parts


def _left_out(root: Path, files: Sequence[Path], which: str) -> Iterator[str]:
    if files:
        shown = ", ".join(str(path.relative_to(root)) for path in files[:3]) + (", ..." if len(files) > 3 else "")
        yield f"left out: {len(files):,} files {which} ({shown})"


def _sort(root: Path, files: Sequence[Path]) -> tuple[dict[str | None, list[tuple[Path, str]]], list[Path], list[Path]]:
    """split -> (file, class); the files that lie elsewhere; and the texts that their publisher left without a class."""
    found: dict[str | None, list[tuple[Path, str]]] = {}
    strays, unsorted = [], []
    for path in files:
        folders = path.relative_to(root).parts[:-1]
        split = split_of_name(folders[0]) if folders else None
        classes = folders[1:] if split else folders
        if len(classes) != 1:
            strays.append(path)
        elif classes[0].lower() in UNSORTED:
            unsorted.append(path)
        else:
            found.setdefault(split, []).append((path, classes[0]))
    return found, strays, unsorted
