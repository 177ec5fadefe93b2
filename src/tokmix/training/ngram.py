"""A byte n-gram model to compare a language model with: Witten-Bell smoothing down to single bytes, counted in seconds.

    p(c | h) = (count(hc) + kinds(h) · p(c | h')) / (count(h) + kinds(h))     h' = h without its oldest byte; p(c | nothing known) = 1/256

kinds(h) is how many different bytes followed h. Documents are read one after the other, as one stream of bytes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tokmix.core.optional import np
from tokmix.data.tokens import TokenFiles, TokenSplit

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ORDER = 5
MOST = 2**26  # bytes of train that are counted


def bits_per_byte(train: np.ndarray, test: np.ndarray, order: int = ORDER) -> float:
    """Both uint8; each byte is predicted from the order - 1 before it."""
    chance = np.full(len(test), 1 / 256)
    for n in range(1, min(order, len(train), len(test)) + 1):
        grams, counts = np.unique(_grams(train, n), return_counts=True)
        histories, starts = np.unique(grams >> np.uint64(8), return_index=True)  # grams are sorted, so each history's stand together
        totals, kinds = np.add.reduceat(counts, starts), np.diff(np.append(starts, len(grams)))
        wanted = _grams(test, n)
        seen = _look_up(grams, counts, wanted)
        history = wanted >> np.uint64(8)
        total, kind = _look_up(histories, totals, history), _look_up(histories, kinds, history)
        place = np.arange(n - 1, len(test))  # the first bytes have no history of that length
        better = (seen + kind * chance[place]) / np.maximum(total + kind, 1)
        chance[place] = np.where(total > 0, better, chance[place])
    return float(-np.log2(chance).mean())


def _grams(text: np.ndarray, n: int) -> np.ndarray:
    """The n bytes that end at each place, as one number, oldest first."""
    found = np.zeros(max(len(text) - n + 1, 0), dtype=np.uint64)
    for place in range(n):
        found = (found << np.uint64(8)) | text[place : len(text) - n + 1 + place].astype(np.uint64)
    return found


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def read_bytes(split: TokenSplit, tokenizer: Tokenizer, most: int | None = None, rows: np.ndarray | None = None) -> np.ndarray:
    """The text of a split or of these documents of it, or its beginning, as bytes."""
    pieces, size = [], 0
    chosen = np.arange(len(split)) if rows is None else rows
    for start in range(0, len(chosen), 256):
        ids, lengths = split.rows(chosen[start : start + 256])
        for text in tokenizer.decode_batch([part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]):
            pieces.append(np.frombuffer(text.encode("utf-8"), dtype=np.uint8))
            size += len(pieces[-1])
        if most is not None and size >= most:
            break
    return np.concatenate([np.zeros(0, dtype=np.uint8), *pieces])[:most]


def baseline(files: TokenFiles, split: str, rows: np.ndarray | None = None) -> dict[str, float]:
    """Counted on these documents of train, or on all of it -> bits per byte of `split`, and the seconds it took."""
    began, tokenizer = time.monotonic(), files.tokenizer()
    train, test = read_bytes(files["train"], tokenizer, MOST, rows), read_bytes(files[split], tokenizer)
    bits = bits_per_byte(train, test)
    return {"bits_per_byte": bits, "order": ORDER, "train_bytes": len(train), "seconds": time.monotonic() - began}
