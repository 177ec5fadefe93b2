"""`tokmix embed`: texts -> a vector each, as JSON lines, csv or a numpy file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from tokmix.api.model import TrainedModel, load
from tokmix.core.optional import np
from tokmix.runs.files import check_free, replacing

FORMATS = ("jsonl", "csv", "npy")
CHUNK = 4096  # texts embedded at a time


def write(
    model: str | Path, given: Sequence[str], out: str | None, form: str | None, encoding: str = "utf-8", imports: Sequence[str] = ()
) -> int:
    """-> the number of texts. A file is written whole or not at all."""
    from tokmix.training.predict import read_texts

    kind = form or (Path(out).suffix.removeprefix(".") if out else "jsonl")
    if kind not in FORMATS:
        raise ValueError(f"{out} should end with .{', .'.join(FORMATS)}, or give --format")
    if kind == "npy" and out is None:
        raise ValueError("a numpy file is binary: name it with --out FILE.npy")
    if out is not None:
        check_free(Path(out))
    trained = load(model, imports=imports)
    texts = read_texts(trained._trained, given, encoding)
    if out is None:
        return _lines(trained, texts, kind, sys.stdout)
    with replacing(Path(out)) as partial:
        if kind == "npy":
            vectors = [found for _, found in _vectors(trained, texts)]
            _check(len(vectors))
            with open(partial, "wb") as binary:
                np.save(binary, np.concatenate(vectors))
            return sum(map(len, vectors))
        with open(partial, "w", encoding="utf-8", newline="") as file:
            return _lines(trained, texts, kind, file)


def _vectors(trained: TrainedModel, texts: Iterable[str | tuple[str, ...]]) -> Iterable[tuple[list[str | tuple[str, ...]], np.ndarray]]:
    stream = iter(texts)
    while chunk := list(islice(stream, CHUNK)):
        yield chunk, trained.embed(chunk)  # type: ignore[arg-type]


def _lines(trained: TrainedModel, texts: Iterable[str | tuple[str, ...]], kind: str, file: TextIO) -> int:
    import csv

    count, writer = 0, csv.writer(file, lineterminator="\n")
    for chunk, found in _vectors(trained, texts):
        for text, vector in zip(chunk, found.tolist(), strict=True):
            shown = [round(value, 6) for value in vector]
            parts = [text] if isinstance(text, str) else list(text)
            if kind == "jsonl":
                file.write(json.dumps({"text": text, "embedding": shown}, ensure_ascii=False) + "\n")
                continue
            if count == 0:
                writer.writerow([*(["text"] if len(parts) == 1 else ["text1", "text2"]), *(f"e{i}" for i in range(len(shown)))])
            writer.writerow([*parts, *shown])
            count += 1
        count += len(chunk) if kind == "jsonl" else 0
    _check(count)
    return count


def _check(count: int) -> None:
    if not count:
        raise ValueError("there is no text to embed")
