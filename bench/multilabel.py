"""Genres of films from the first lines of their articles: `tokmix train` beside one-vs-rest linear models on TF-IDF. A line of JSON.

    git clone https://github.com/prust/wikipedia-movie-data films
    python bench/multilabel.py --data films --out multilabel.jsonl [--rows 4000] [--seed 0] [--bag]

The table holds films of 1970 to 2019 with an extract and a genre: about 11,400 rows, 41 genres, 1.9 a row; a fifth, by a hash of the text,
is kept to measure on. The rivals are LinearSVC and logistic regression on TF-IDF of word 1-2 grams, one for each genre, C chosen on a tenth
of train. Each gives the labels above its own border, and once more above a border chosen on that tenth, as tokmix does. --bag: the network
makes one step, so that the bag of words answers.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
from tables import tokmix

YEARS = ("1970", "1980", "1990", "2000", "2010")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, help="of train, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bag", action="store_true")
    options = parser.parse_args()
    train, test = read(options.data)
    train = train[: options.rows]
    found = {"data": "films", "train": len(train), "test": len(test), "seed": options.seed, "load": os.getloadavg()[0]}
    found |= {"rivals": rivals(train, test), **ours(train, test, options.seed, options.bag)}
    with open(options.out, "a") as file:
        file.write(json.dumps(found) + "\n")
    print(found)


def read(folder: Path) -> tuple[list[dict], list[dict]]:
    parts: tuple[list[dict], list[dict]] = ([], [])
    for name in YEARS:
        for film in json.loads((folder / f"movies-{name}s.json").read_text(encoding="utf-8")):
            if film.get("extract") and film.get("genres"):
                at = zlib.crc32(film["extract"].encode())
                parts[at % 5 == 0].append({"text": film["extract"], "labels": film["genres"], "at": at})
    train, test = (sorted(rows, key=lambda row: row["at"]) for rows in parts)
    return [{"text": row["text"], "labels": row["labels"]} for row in train], [
        {"text": row["text"], "labels": row["labels"]} for row in test
    ]


def micro_f1(given: np.ndarray, wanted: np.ndarray) -> float:
    return float(2 * (given & wanted).sum() / max(given.sum() + wanted.sum(), 1))


def rivals(train: list[dict], test: list[dict]) -> dict:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer
    from sklearn.svm import LinearSVC

    words, names = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), MultiLabelBinarizer()
    x, y = words.fit_transform(row["text"] for row in train), names.fit_transform([row["labels"] for row in train]).astype(bool)
    known = set(names.classes_)
    wanted = names.transform([[one for one in row["labels"] if one in known] for row in test]).astype(bool)
    unknown = sum(one not in known for row in test for one in row["labels"])
    held, others, found = np.random.default_rng(0).random(len(train)) < 0.1, words.transform(row["text"] for row in test), {}
    for name, make, grid in (
        ("svm", lambda C: LinearSVC(C=C), (0.1, 0.3, 1.0, 3.0)),
        ("logistic", lambda C: LogisticRegression(C=C, solver="liblinear"), (3.0, 10.0, 30.0)),
    ):
        tried = []
        for C in grid:
            scores = OneVsRestClassifier(make(C)).fit(x[~held], y[~held]).decision_function(x[held])
            borders = np.linspace(-1.5, 0.5, 41)
            best = max(borders, key=lambda border: micro_f1(scores > border, y[held]))
            tried.append((micro_f1(scores > 0, y[held]), micro_f1(scores > best, y[held]), C, float(best)))
        plain, chosen = max(tried), max(tried, key=lambda one: one[1])
        figures = {}
        for kind, C, border in (("own border", plain[2], 0.0), ("chosen border", chosen[2], chosen[3])):
            given = OneVsRestClassifier(make(C)).fit(x, y).decision_function(others) > border
            figures[kind] = {"micro_f1": float(2 * (given & wanted).sum() / (given.sum() + wanted.sum() + unknown)), "C": C}
        found[name] = figures
    return found


def ours(train: list[dict], test: list[dict], seed: int, bag_alone: bool) -> dict:
    with tempfile.TemporaryDirectory() as home:
        folder, out = Path(home) / "films", Path(home) / "run"
        folder.mkdir()
        for name, rows in (("train", train), ("test", test)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = ["--train.steps", 1, "--train.evaluations", 1] if bag_alone else []
        tokmix("train", folder, "--out", out, "--train.seed", seed, *more)
        record = json.loads((out / "model" / "training.json").read_text())
    figures = record["figures"]
    answer = {"micro_f1": figures["micro_f1"], "macro_f1": figures["macro_f1"], "interval": figures["intervals"]["micro_f1"]}
    network = None if bag_alone else (record["network_figures"] or figures)["micro_f1"]
    bag = {name: record["baseline"][name] for name in ("micro_f1", "kind", "seconds")}
    return {"tokmix": answer | {"by": record["answers"]["by"]}, "network": network, "bag": bag, "seconds": record["cost"]["seconds"]}


if __name__ == "__main__":
    main()
