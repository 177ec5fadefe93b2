"""Large texts of many documents -> token ids. Documents are held out by a hash of their text, so no document is on both sides.

    encyclopedia   TEXT/wiki                               english   TEXT/wiki, TEXT/novels and TEXT/speeches

TEXT is a folder (--data, or the environment variable TOKMIX_TEXT) whose folders hold .txt or .txt.bz2 files; a document ends at a line
<|endoftext|>. The tokenizer is a byte-level BPE of 8,192, trained on the first documents of train.
"""

from __future__ import annotations

import bz2
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from tokmix.core.optional import np

FOLDERS = {"encyclopedia": ("wiki",), "english": ("wiki", "novels", "speeches")}
VOCAB = 8192
HELD = {"valid": 0.005, "test": 0.005}  # shares of the documents
SAMPLE = 40_000_000  # characters that the tokenizer is trained on
ENDING = "<|endoftext|>"
AT_ONCE = 512  # documents


def files(folder: Path, name: str) -> list[Path]:
    """Of the text in a folder or in TOKMIX_TEXT; none where a part of it is missing."""
    for place in (folder, Path(os.environ.get("TOKMIX_TEXT") or folder)):
        found = [[path for path in sorted((place / part).glob("*.txt*")) if path.suffix in (".txt", ".bz2")] for part in FOLDERS[name]]
        if all(found):
            return [path for paths in found for path in paths]
    return []


def documents(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        with bz2.open(path, "rt", encoding="utf-8") if path.suffix == ".bz2" else open(path, encoding="utf-8") as lines:
            held: list[str] = []
            for line in lines:
                if line.strip() != ENDING:
                    held.append(line)
                    continue
                if text := "".join(held).strip("\n"):
                    yield text
                held = []
            if text := "".join(held).strip("\n"):  # the last one may have no end
                yield text


def split_of(text: str) -> str:
    """The same for the same text, whatever stands around it."""
    place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
    for name, share in HELD.items():
        if place < share:
            return name
        place -= share
    return "train"


def encoded(paths: list[Path], vocab: int = VOCAB, sample: int = SAMPLE) -> tuple[dict[str, np.ndarray], dict[str, int], int, str]:
    """-> ids of each split, bytes of its text, the id that ends a document, and what the tokenizer is."""
    from tokmix.data.prepare.tokenize import Encoder, batched, make_ready, train_tokenizer

    def begin() -> Iterator[str]:
        left = sample
        for text in documents(paths):
            if left <= 0:
                return
            if split_of(text) == "train":
                left -= len(text)
                yield text

    tokenizer = train_tokenizer("bpe", begin, vocab)
    end = make_ready(tokenizer, "lm")["eot"]
    encoder, after = Encoder(tokenizer), np.array([end], dtype=np.uint16)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("train", *HELD)}
    sizes = dict.fromkeys(parts, 0)
    for texts in batched(documents(paths), AT_ONCE):
        for text, ids in zip(texts, encoder.documents(texts), strict=True):
            name = split_of(text)
            parts[name] += [ids.astype(np.uint16), after]
            sizes[name] += len(text.encode())
    if empty := [name for name, found in parts.items() if not found]:
        raise ValueError(f"{paths[0].parent} has too few documents: none falls into {empty[0]}")
    told = f"byte-level BPE of {vocab}, trained on the first {sample / 1e6:g} M characters of train"
    return {name: np.concatenate(found) for name, found in parts.items()}, sizes, end, told
