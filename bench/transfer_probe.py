"""What a swapped sentence encoder keeps, and its speed: linear probes on frozen features of both, and 512 tokens on one core.

    python bench/transfer_probe.py TEACHER STUDENT --data FOLDER

FOLDER holds trec/ and sst2/, each with train and test .tsv.gz of text and label. Features: the mean of the last hidden states,
normalised. The probe is a logistic regression. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

import tokmix.hf  # noqa: F401 - restores swaps

MOST = 6000  # rows of train
ROUNDS = 30


def rows(path: Path) -> tuple[list[str], list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(found)
    return [row["text"] for row in found[:MOST]], [row["label"] for row in found[:MOST]]


@torch.inference_mode()
def features(model: torch.nn.Module, tokenizer: object, texts: list[str]) -> np.ndarray:
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = tokenizer([texts[i] for i in chosen], padding=True, truncation=True, max_length=128, return_tensors="pt")
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        out[chosen] = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)).numpy()
    return out


def accuracy(train: tuple[np.ndarray, list[str]], test: tuple[np.ndarray, list[str]]) -> float:
    probe = LogisticRegression(max_iter=1000, C=10).fit(*train)
    return 100 * float(probe.score(*test))


@torch.inference_mode()
def speed(models: list[torch.nn.Module], tokens: int = 512) -> list[list[float]]:
    """Milliseconds of one sequence, the models taking turns."""
    ids = torch.randint(1000, 20000, (1, tokens), generator=torch.Generator().manual_seed(0))
    times: list[list[float]] = [[] for _ in models]
    for turn in range(ROUNDS + 3):
        for place, model in enumerate(models):
            began = time.process_time()
            model(ids)
            if turn >= 3:
                times[place].append(1e3 * (time.process_time() - began))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("student")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only-speed", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(given.teacher)
    models = [AutoModel.from_pretrained(folder).eval() for folder in (given.teacher, given.student)]
    found: dict[str, object] = {}
    for name in () if given.only_speed else ("trec", "sst2"):
        parts = {split: rows(given.data / name / f"{split}.tsv.gz") for split in ("train", "test")}
        scores = []
        for model in models:
            made = {split: (features(model, tokenizer, texts), labels) for split, (texts, labels) in parts.items()}
            scores.append(round(accuracy(made["train"], made["test"]), 2))
        found[name] = {"teacher": scores[0], "student": scores[1], "loss": round(scores[0] - scores[1], 2)}
    times = [np.percentile(one, [25, 50, 75]).round(1).tolist() for one in speed(models)]
    found["ms of 512 tokens (quartiles, one core, CPU time)"] = {"teacher": times[0], "student": times[1]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
