"""Which split a text belongs to: the one it was given in, or one by a hash of the text; its place in the file does not matter.

key    64 bits of a hash of the normalised text (of both texts for a pair); written beside the tokens
place  key -> train, valid or test; equal texts have equal keys, so they stay together
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import PurePath
from typing import TYPE_CHECKING

from tokmix.core.checks import within

if TYPE_CHECKING:
    import numpy as np

SPLITS = ("train", "valid", "test")
_NAMES = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid", "dev": "valid"}
_NAMES |= {"development": "valid", "eval": "valid", "test": "test", "testing": "test"}


def split_of_name(name: str) -> str | None:
    """'train-00000-of-00002' -> train, 'validation_matched' -> valid, 'my_test' -> test, 'contest' -> None."""
    for word in re.split(r"[^a-z]+", name.lower()):
        if word in _NAMES:
            return _NAMES[word]
    return None


def split_of_path(path: str) -> str | None:
    """From the file's own name, else from the folders above it, nearest first."""
    return next((split for piece in reversed(PurePath(path).parts) if (split := split_of_name(piece))), None)


def normalise(text: str) -> str:
    """A normal form: texts that differ only in case, width or spacing are equal."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def text_key(*texts: str) -> int:
    joined = "\x1f".join(normalise(text) for text in texts)
    return int.from_bytes(hashlib.blake2b(joined.encode(), digest_size=8).digest(), "little")


def place(key: int, valid: float, test: float) -> str:
    """Test takes one end of the range of keys and valid the other, so changing one share does not change the other split."""
    share = key / 2**64
    if share < test:
        return "test"
    return "valid" if share >= 1 - valid else "train"


def check_shares(valid: float, test: float) -> None:
    within("valid", valid, 0, 1)
    within("test", test, 0, 1)
    if valid + test >= 1:
        raise ValueError(f"valid={valid} and test={test} leave nothing to train on")


def holdout(keys: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (kept, held out), by the same keys: equal texts, or those of a group, stay together. For model selection within train.

    The keys are hashed again: train's keys are those that `place` left, so they are not uniform."""
    from tokmix.core.optional import np
    from tokmix.data.order import mix

    within("share", share, 0, 1)
    held = mix(np.asarray(keys, dtype=np.uint64), 0x686F6C64, seed) < np.uint64(min(int(share * 2**64), 2**64 - 1))
    return np.flatnonzero(~held), np.flatnonzero(held)


def portion(rows: np.ndarray, keys: np.ndarray, share: float) -> np.ndarray:
    """This share of some row numbers, in their order: those whose keys come first in a shuffled order, so that a smaller share
    is part of a larger one. `keys` are those of all rows."""
    from tokmix.core.optional import np
    from tokmix.data.order import mix

    within("share", share, 0, 1)
    if share == 1:
        return rows
    order = np.argsort(mix(np.asarray(keys, dtype=np.uint64)[rows], 0x70617274), kind="stable")
    return rows[np.sort(order[: max(1, round(share * len(rows)))])]


def overlap(keys: dict[str, np.ndarray], chunk: int = 2**22) -> dict[str, int]:
    """'valid in train' -> how many rows of valid have a text that is also in train; likewise for the other pairs.

    Only the later split's distinct keys are held in memory; train is read in chunks."""
    from tokmix.core.optional import np

    counts = {}
    names = [name for name in SPLITS if name in keys]
    for i, later in enumerate(names):
        distinct, copies = np.unique(keys[later], return_counts=True)
        for earlier in names[:i]:
            counts[f"{later} in {earlier}"] = int(copies[_among(distinct, keys[earlier], chunk)].sum())
    return counts


def shared(keys: dict[str, np.ndarray], chunk: int = 2**22) -> int:
    """The number of distinct keys that are in more than one split."""
    from tokmix.core.optional import np

    found = []
    names = [name for name in SPLITS if name in keys]
    for i, later in enumerate(names):
        distinct = np.unique(keys[later])
        found += [distinct[_among(distinct, keys[earlier], chunk)] for earlier in names[:i]]
    return len(np.unique(np.concatenate(found))) if found else 0


def _among(distinct: np.ndarray, keys: np.ndarray, chunk: int) -> np.ndarray:
    """[distinct] bool: which keys are among others, which are read in chunks."""
    from tokmix.core.optional import np

    hit = np.zeros(len(distinct), dtype=bool)
    for start in range(0, len(keys), chunk):
        hit |= np.isin(distinct, keys[start : start + chunk])
    return hit
