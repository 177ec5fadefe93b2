"""All steps from a table to a report, on text that every machine has: are two lines of Python's standard library in the right order?

OUT/stdlib/
    pairs.jsonl      two neighbouring lines of code, label, split, and the file they come from
    run/             as `tokmix train` writes it; model/ in it is the model folder
    report.html      the run on one page, with the words that made an answer and maps of who reads whom

The task depends on the order of words, of which a bag of words sees little.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from tokmix.cli.demo import lines
from tokmix.data.prepare.pipeline import prepare
from tokmix.pages import report
from tokmix.runs.files import JsonObject
from tokmix.study.explain.words import attribute
from tokmix.study.summary import table
from tokmix.training import baseline, model_folder
from tokmix.training.predict import Predictor
from tokmix.training.progress import Interrupted
from tokmix.training.report import clock
from tokmix.training.settings import Settings
from tokmix.training.train import run

FOLDER, MARK = "stdlib", ".tokmix-demo"
LENGTH = 256
GIVEN = {"train.epochs": 3, "train.evaluations": 3, "train.final": "test", "train.refit": False, "train.pretrain": 0}
LOOKED_AT = 50  # swapped pairs, of which the surest answer is shown
BAR = 40  # characters of the longest bar


def main(out: str | Path = "out/demo", seed: int = 0, most: dict[str, int] | None = None) -> JsonObject:
    """Prepare, train, print the results. most: the number of pairs of each split. -> the record of the run"""
    began, folder = time.monotonic(), Path(out) / FOLDER
    with _fresh(folder):
        root = lines.standard_library()
        found = lines.collect(root, most)
        print(f"Do two neighbouring lines of code stand in the right order? {len(found):,} pairs from {root}", flush=True)
        lines.write(folder / "pairs.jsonl", found)
        print(prepare(folder / "pairs.jsonl", folder / "data", max_len=LENGTH, group="file").summary(), flush=True)
        settings = Settings.of(None, GIVEN | {"train.seed": seed})
        print("\ntraining, with the settings that `tokmix train` chooses for pairs and 3 epochs", flush=True)
        with redirect_stdout(io.StringIO()):  # what the run prints comes once, at the end
            record = run(folder / "data", folder / "run", settings)
        _tell(record)
        _predict(folder, found)
        page = report.write([folder / "run"], folder / "report.html")
    _paths(folder)
    print(f"report          {page}")
    print(f"{clock(time.monotonic() - began)} in all")
    return record


@contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """A new folder. It replaces the folder of an earlier demo, and nothing else. If the demo is stopped, the next one replaces it."""
    if folder.exists() or folder.is_symlink():
        if not (folder / MARK).is_file():
            raise ValueError(f"{folder} exists and is not of an earlier demo; nothing is overwritten: name another folder with --out")
        shutil.rmtree(folder)
    if folder.parent.is_file():
        raise ValueError(f"{folder.parent} is a file: name a folder with --out")
    folder.mkdir(parents=True)
    (folder / MARK).write_text("written by `tokmix demo`, which may replace this folder\n", encoding="utf-8")
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt(f"stopped; the next demo starts anew, and replaces {folder}") from None


def _tell(record: JsonObject) -> None:
    network, bag, cost = record.get("network_figures") or record["figures"], record["baseline"], record["cost"]
    rows = [["", "accuracy", "size", "time"]]
    bars = [("guessing", 0.5)]
    if bag is not None:
        rows.append(["bag of words", f"{bag['accuracy']:.4f}", f"{bag['features']:,} features", clock(bag["seconds"])])
        bars.append(("bag of words", bag["accuracy"]))
    rows.append(["network", f"{network['accuracy']:.4f}", f"{cost['parameters']:,} parameters", clock(cost["seconds"])])
    bars += [("network", network["accuracy"]), ("tokmix train", record["figures"]["accuracy"])]
    print(f"\n{record['figures']['rows']:,} pairs from files that were not read in training\n{table(rows)}\n\n{_chart(bars)}")
    print(baseline.ABSENT if bag is None else f"`tokmix train` answers by the {record['answers']['by']}, chosen on held-out rows of train")


def _chart(bars: list[tuple[str, float]]) -> str:
    width = max(len(name) for name, _ in bars)
    return "\n".join(f"{name:<{width}}  {'█' * max(1, round(BAR * value))} {value:.4f}" for name, value in bars)


def _predict(folder: Path, found: list[lines.Pair]) -> None:
    trained = model_folder.load(folder / "run")
    predictor = Predictor(trained)
    some = [pair for pair in found if pair.split == "test" and pair.label == lines.SWAPPED][:LOOKED_AT]
    answers = [answer["probabilities"] for answer in predictor([(pair.text1, pair.text2) for pair in some])]
    pair, chances = max(zip(some, answers, strict=True), key=lambda one: max(one[1].values()))
    texts, label = (pair.text1, pair.text2), max(chances, key=chances.__getitem__)
    print(f"\nThe surest of {len(some)} answers, two lines of {pair.file}:\n    {pair.text1}\n    {pair.text2}")
    print(f"predicted: {label} with probability {chances[label]:.2f}; right is {pair.label}")
    print("\n".join(attribute(trained, texts, predictor=predictor).lines(count=5)[1:]))


def _paths(folder: Path) -> None:
    print(f"\npairs           {folder / 'pairs.jsonl'}\nmodel           {folder / 'run' / 'model'}")
    print(f"learning curve  {folder / 'run' / 'curve.png'}")
    one = "\n".join(["text1,text2", ",".join(json.dumps(line) for line in ("return total", "total = a + b"))])
    (folder / "try.csv").write_text(one + "\n", encoding="utf-8")
    print(f"try: tokmix predict {folder / 'run'} {folder / 'try.csv'}")
