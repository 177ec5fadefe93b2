"""Accuracy and speed of a model by torch and as ONNX graphs, float32 and int8: python -m bench.export RUN rows.tsv[.gz]

Rows are texts and labels in two columns, with a header. The three take turns on one thread; the best of the rounds counts, in CPU time.
"""

from __future__ import annotations

import csv
import gzip
import sys
import tempfile
import time
from pathlib import Path

import torch

from tokmix.export import export
from tokmix.export.torch_model import load as load_torch
from tokmix.runtime import load
from tokmix.runtime.model import TextModel

ROUNDS = 5


def main(run: str, data: str) -> None:
    torch.set_num_threads(1)
    content = Path(data).read_bytes()
    lines = (gzip.decompress(content) if data.endswith(".gz") else content).decode().splitlines()
    with tempfile.TemporaryDirectory() as place:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        texts, labels = [row[0] for row in rows], [row[1] for row in rows]
        models: dict[str, TextModel] = {"torch": load_torch(run)}
        for name, int8 in (("ONNX", False), ("ONNX, int8", True)):
            export(run, Path(place) / name, int8=int8)
            models[name] = load(Path(place) / name, threads=1)
        best, right = dict.fromkeys(models, float("inf")), dict.fromkeys(models, 0)
        for _ in range(ROUNDS):
            for name, model in models.items():
                begin = time.thread_time()
                found = model.predict(texts)
                best[name] = min(best[name], time.thread_time() - begin)
                right[name] = sum(one == label for one, label in zip(found, labels, strict=True))
        alone = {}
        for name, model in models.items():
            begin = time.thread_time()
            for text in texts[:200]:
                model.predict([text])
            alone[name] = (time.thread_time() - begin) / min(len(texts), 200)
    for name in models:
        speed = f"{len(texts) / best[name]:>8,.0f} rows/s, {1 / alone[name]:>6,.0f} one at a time"
        print(f"{name:<11} accuracy {right[name] / len(texts):.4f}  {speed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
