"""Tables of one or two texts and a label -> ids, from raw files or from the compact files that `prepare` writes.

    raw        a folder DATA/NAME (rows_raw.py), and DATA/tokenizers/bert-base-uncased.json     needs the package tokenizers
    prepared   DATA/NAME.npz                                                                    needs numpy alone

Rows are [CLS] a [SEP] or [CLS] a [SEP] b [SEP], at most so many tokens, the longer text cut first. Each row keeps a hash of its first
text, by which rows are held out: texts that begin alike (a premise with its three hypotheses) fall on one side; pieces of sentences go by
their sentences (rows_phrases.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reproduce import rows_phrases, rows_raw
from tokmix.core.checks import nearest
from tokmix.core.optional import np
from tokmix.runs.files import replacing

VOCAB, TOKENIZER = 30522, "tokenizers/bert-base-uncased.json"
LIMITS = {"imdb": 4096}  # tokens of a row; 128 elsewhere
LIMIT = 128
VERSION = 3


@dataclass(frozen=True)
class Texts:
    """The rows of a split: ids of all of them one after the other, and where each begins."""

    ids: np.ndarray  # [tokens] uint16
    starts: np.ndarray  # [n + 1] int64
    labels: np.ndarray  # [n] int64
    hashes: np.ndarray  # [n] uint64, of the first text
    whole: np.ndarray  # [n] bool, False for a piece of another text: learned from, never scored
    cut: int  # rows that were longer

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def beyond(self, limit: int) -> int:
        """How many rows lose their end at that many tokens; those that were cut already stand at their own limit."""
        return int((self.lengths > limit).sum()) if self.lengths.max() > limit else self.cut

    def padded(self, chosen: np.ndarray, width: int) -> np.ndarray:
        """The chosen rows, [n, width] int32, zero behind a row's end; longer rows end there."""
        column = np.arange(width)
        there = column < self.lengths[chosen, None]
        table = np.zeros(there.shape, dtype=np.int32)
        table[there] = self.ids[(self.starts[chosen, None] + column)[there]]
        return table


@dataclass(frozen=True)
class Table:
    name: str
    train: Texts
    valid: Texts
    labels: tuple[str, ...]
    sources: dict[str, str]  # file -> sha256
    test: Texts | None = None

    @property
    def splits(self) -> dict[str, Texts]:
        return {"train": self.train, "valid": self.valid} | ({} if self.test is None else {"test": self.test})

    def known(self) -> np.ndarray:
        """The ids that occur, ascending, and 0, which stands behind a row's end."""
        return np.unique(np.concatenate([[0], *(texts.ids for texts in self.splits.values())]))


@lru_cache(maxsize=2)
def load(folder: Path, name: str) -> Table:
    """From NAME.npz if it is there, else from the raw files."""
    if (folder / f"{name}.npz").is_file():
        return _read_npz(folder / f"{name}.npz", name)
    if (folder / name).is_dir():
        return _encode(folder, name)
    there = sorted({entry.name.removesuffix(".npz") for entry in folder.iterdir()}) if folder.is_dir() else []
    raise ValueError(f"{folder} holds neither {name}.npz nor a folder {name}{nearest(name, there)}")


def prepare(data: Path, out: Path, names: Sequence[str]) -> list[Path]:
    """Raw files -> compact ones, for a machine without the package tokenizers."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        table = _encode(data, name)
        parts: dict[str, Any] = {}
        for split, texts in table.splits.items():
            parts |= {f"{split}_{part}": getattr(texts, part) for part in ("ids", "labels", "hashes", "whole")}
            parts[f"{split}_lengths"] = texts.lengths.astype(np.uint16)
            parts[f"{split}_labels"] = texts.labels.astype(np.uint8)
        cut = {split: texts.cut for split, texts in table.splits.items()}
        facts = {"version": VERSION, "labels": table.labels, "sources": table.sources, "cut": cut}
        path = out / f"{name}.npz"
        with replacing(path) as partial, open(partial, "wb") as file:
            np.savez_compressed(file, facts=np.array(json.dumps(facts)), **parts)
        written.append(path)
    return written


def _read_npz(path: Path, name: str) -> Table:
    try:
        with np.load(path, allow_pickle=False) as held:
            facts = json.loads(str(held["facts"]))
            if facts["version"] != VERSION:
                raise ValueError(f"version {facts['version']}, this tokmix reads {VERSION}")
            splits = [
                Texts(
                    held[f"{split}_ids"],
                    _starts(held[f"{split}_lengths"]),
                    held[f"{split}_labels"].astype(np.int64),
                    held[f"{split}_hashes"],
                    held[f"{split}_whole"],
                    facts["cut"][split],
                )
                for split in facts["cut"]
            ]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no file of tokens that `tokmix papers prepare` wrote: {error}") from None
    return Table(name, splits[0], splits[1], tuple(facts["labels"]), facts["sources"], *splits[2:])


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _encode(folder: Path, name: str) -> Table:
    from tokmix.data.prepare.tokenize import Encoder, load_tokenizer

    encoder = Encoder(load_tokenizer(folder / TOKENIZER), LIMITS.get(name, LIMIT))
    rows, files = rows_raw.read(folder / name)
    labels = tuple(sorted({row[-1] for row in rows["train"]}))
    known = {label: place for place, label in enumerate(labels)}
    splits = []
    for split in rows:
        texts = [tuple(row[:-1]) for row in rows[split]]
        if strange := {row[-1] for row in rows[split]} - set(labels):
            raise ValueError(f"{folder / name}: {split} has the label {sorted(strange)[0]!r}, which train has not")
        ids, cut = encoder.rows(texts)
        hashes, whole = np.array([_hash(row[0]) for row in texts], dtype=np.uint64), np.ones(len(texts), dtype=bool)
        if name in rows_phrases.TABLES and split == "train":
            hashes, whole = rows_phrases.sentences([row[0] for row in texts], hashes)
        splits.append(
            Texts(
                np.concatenate(ids).astype(np.uint16),
                _starts(np.array([len(row) for row in ids])),
                np.array([known[row[-1]] for row in rows[split]], dtype=np.int64),
                hashes,
                whole,
                len(cut),
            )
        )
    sources = {str(path.relative_to(folder)): _sha256(path) for path in (folder / TOKENIZER, *files)}
    return Table(name, splits[0], splits[1], labels, sources, *splits[2:])


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def held_out(texts: Texts, share: float, fraction: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of train to learn from, and rows to choose by. Both are cut by the hash of a row's first text: the lowest
    `share` of all hashes is held out, and of the rest the lowest `fraction`, so a smaller part is inside every larger one. Pieces of
    what is held out are in neither."""
    aside = _aside(texts, share)
    rest = np.flatnonzero(~aside)
    order = rest[np.argsort(texts.hashes[rest], kind="stable")]
    return np.sort(order[: max(1, round(fraction * len(order)))]), np.flatnonzero(aside & texts.whole)


def pieces_left_out(texts: Texts, share: float) -> int:
    """How many are in neither."""
    return int((_aside(texts, share) & ~texts.whole).sum())


def _aside(texts: Texts, share: float) -> np.ndarray:
    return texts.hashes < np.uint64(min(2**64 - 1, round(share * 2**64)))
