"""`tokmix train` with defaults beside scikit-learn's linear models, table by table: a line of JSON for each.

    python bench/tables.py --data FOLDER --out tables.jsonl [--sets trec,cola] [--seed 0] [--bag] [--from ENCODER [--freeze yes]]

FOLDER holds one folder a set, each with train, valid and test as `tokmix prepare` reads them (tab-separated, a header, no quoting).
The rivals are LinearSVC and logistic regression on TF-IDF of word 1-2 grams, C chosen on a tenth of train held out, then fitted on all
of train; both texts of a pair make one text. A table of scores has Ridge and LinearSVR as rivals, and Pearson's correlation in place of
accuracy. --bag: no network, only the bag of words that a run fits first. --from: the run starts from an encoder, and its seconds hold
those of preparing the data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# The split of the reported figure: valid where the test labels are not public.
FINAL = {"trec": "test", "agnews": "test", "snli": "test"}
SETS = ("trec", "cola", "mrpc", "rte", "stsb", "sst2", "agnews", "qnli", "qqp", "mnli", "snli")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bag", action="store_true")
    parser.add_argument("--from", dest="start", default=None)
    parser.add_argument("--freeze", choices=("auto", "yes", "no"), default="auto")
    options = parser.parse_args()
    start = [] if options.start is None else ["--from", options.start, "--train.freeze", options.freeze]
    for name in options.sets.split(","):
        split = FINAL.get(name, "valid")
        found = {"data": name, "split": split, "seed": options.seed, "load": os.getloadavg()[0], **rivals(options.data / name, split)}
        found |= ours(options.data / name, split, options.seed, options.bag, start)
        found |= {"from": options.start, "freeze": options.freeze} if start else {}
        with open(options.out, "a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


def read(folder: Path, split: str) -> tuple[list[str], np.ndarray]:
    with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [" ".join(row[:-1]) for row in rows], np.array([row[-1] for row in rows])


def rivals(folder: Path, split: str) -> dict:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC, LinearSVR

    texts, labels = read(folder, "train")
    others, wanted = read(folder, split)
    scores_asked = is_number(labels[0]) and len(set(labels)) > 20
    if scores_asked:
        labels, wanted = labels.astype(float), wanted.astype(float)
    held = np.random.default_rng(0).random(len(texts)) < 0.1
    began, found = time.monotonic(), {}
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    train, test = words.fit_transform(texts), words.transform(others)
    classes = (("svm", lambda C: LinearSVC(C=C), (0.03, 0.1, 0.3, 1.0, 3.0)),
               ("logistic", lambda C: LogisticRegression(C=C, max_iter=300), (1.0, 3.0, 10.0, 30.0)))  # fmt: skip
    numbers = (("ridge", lambda C: Ridge(alpha=1 / C, solver="lsqr"), (0.1, 0.3, 1.0, 3.0)),
               ("svr", lambda C: LinearSVR(C=C), (0.03, 0.1, 0.3, 1.0, 3.0)))  # fmt: skip
    figure = figure_of(scores_asked)
    for name, make, grid in numbers if scores_asked else classes:
        scores = [quality(make(C).fit(train[~held], labels[~held]).predict(train[held]), labels[held], scores_asked) for C in grid]
        best = grid[int(np.argmax(scores))]
        found[name] = {figure: quality(make(best).fit(train, labels).predict(test), wanted, scores_asked), "C": best}
    return {"rivals": found, "rivals_seconds": time.monotonic() - began, "rows": len(texts), "reported_rows": len(wanted)}


def is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def figure_of(scores: bool) -> str:
    return "pearson" if scores else "accuracy"


def quality(predicted: np.ndarray, wanted: np.ndarray, scores: bool) -> float:
    return float(np.corrcoef(predicted, wanted)[0, 1] if scores else (predicted == wanted).mean())


def ours(folder: Path, split: str, seed: int, bag: bool, start: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as home:
        out, data = Path(home) / "run", folder if start else Path(home) / "data"
        if not start:
            tokmix("prepare", folder, "--out", data)
        more = start + (["--train.steps", 1, "--train.evaluations", 1] if bag else [])
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        tokmix("train", data, "--out", out, "--train.seed", seed, "--train.final", split, *more)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        core_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        record = json.loads((out / "model" / "training.json").read_text())
    simple = record["baseline"]
    figure = figure_of("pearson" in simple)
    found = {"bag": {name: simple[name] for name in (figure, "kind", "seconds", "intervals")}}
    if bag:
        return found
    network = record["network_figures"] or record["figures"]
    answer = {figure: record["figures"][figure], "interval": record["figures"]["intervals"][figure]}
    answer |= {"by": record["answers"]["by"], "held": record["answers"]["held"]}
    spent = {"seconds": seconds, "core_seconds": core_seconds}
    return found | {"network": network[figure], "tokmix": answer, **spent, "learned_from": record["learned_from"]}


def tokmix(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "tokmix", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
