"""Small data and small runs for the tests of the lab."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tokmix.training.settings import Settings

GOOD, BAD = ("fine bright warm lovely", "dull grey cold awful")
REST = "the a one film day road with of in house was it and so then"
SMALL = {"model.stack": "hypermixing(hidden=16)*2", "model.dim": 16, "prepare.vocab": 200, "train.baseline": False, "train.refit": False}


# Learns a small table within seconds.
QUICK = {"train__epochs": 10, "train__lr": 5e-3, "train__rows": 16, "train__token_dropout": 0.0, "model__dropout": 0.1}


def settings(**more: Any) -> Settings:
    return Settings.of(None, SMALL | {name.replace("__", "."): value for name, value in more.items()})


def write_table(path: Path, rows: int = 240, seed: int = 0) -> Path:
    """Sentences of common words with one telling word each, and its class."""
    draw = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        label = draw.choice(["good", "bad"])
        words = draw.choices(REST.split(), k=draw.randint(2, 9))
        words.insert(draw.randint(0, len(words)), draw.choice((GOOD if label == "good" else BAD).split()))
        lines.append(f"{' '.join(words)} {draw.randint(0, 99)},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_scores(path: Path, rows: int = 240, seed: int = 0) -> Path:
    """Pairs of texts; the score is the share of good words in the second."""
    draw = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(rows):
        good = draw.randint(0, 4)
        words = draw.choices(GOOD.split(), k=good) + draw.choices(BAD.split(), k=4 - good)
        draw.shuffle(words)
        lines.append(f"{' '.join(draw.choices(REST.split(), k=3))}\t{' '.join(words)}\t{good / 4 + draw.random() / 100:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_text(path: Path, documents: int = 60, seed: int = 0) -> Path:
    draw = random.Random(seed)
    path.mkdir()
    for i in range(documents):
        (path / f"{i}.txt").write_text(" ".join(draw.choices(REST.split(), k=draw.randint(20, 40))) + ".\n")
    return path


def train_films(folder: Path) -> Path:
    """A table and a run that has learnt it -> the folder of both."""
    from tokmix.training.train import run

    run(write_table(folder / "films.csv", 400), folder / "run", settings(**QUICK, train__evaluations=6), quiet=True)
    return folder
