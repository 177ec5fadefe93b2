"""The lab from end to end on text that is already here: which package of Python's standard library does a snippet come from?

OUT/stdlib/
    snippets.jsonl               text, label, split, and the file it comes from
    data/                        token files, as `tokmix prepare` writes them
    hypermixer/, transformer/    runs, as `tokmix train` writes them; model/ in each is a model folder
    report.html                  both of them on one page, with maps of who reads whom

The HyperMixer's folder answers as every run on a table does: by the network, by the bag of words or by both, whichever is best on held-out
rows. The Transformer of equal size stands next to its network alone.
"""

from __future__ import annotations

import io
import json
import shutil
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from tokmix.core.budget import match_parameters
from tokmix.data import snippets
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.pages import report
from tokmix.runs.files import JsonObject
from tokmix.study.explain.words import attribute
from tokmix.study.summary import table
from tokmix.training import baseline, model_folder
from tokmix.training.predict import Predictor
from tokmix.training.progress import Interrupted
from tokmix.training.report import clock
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask
from tokmix.training.train import run

FOLDER, MARK = "stdlib", ".tokmix-demo"
VOCAB, LENGTH = 4096, 256
GIVEN = {"model.dim": 64, "train.lr": 3e-3, "train.epochs": 6, "train.evaluations": 6, "train.final": "test"}
HYPERMIXER, TRANSFORMER = "hypermixing(hidden=32)*2", "attention(heads=4)*2"
BAR = 40  # characters of the longest bar


def main(out: str | Path = "out/demo", seed: int = 0, most: int | None = None) -> dict[str, JsonObject]:
    """Prepare, train both, print what came of it; `most`: snippets a class, where fewer will do. -> the records of both runs"""
    began, folder = time.monotonic(), Path(out) / FOLDER
    with _fresh(folder):
        root = snippets.standard_library()
        found = snippets.collect(root, most)
        print(f"Which package does a snippet come from? {len(found):,} snippets of {snippets.LINES} lines from {root}", flush=True)
        snippets.write(folder / "snippets.jsonl", found)
        print(prepare(folder / "snippets.jsonl", folder / "data", vocab=VOCAB, max_len=LENGTH, group="file").summary(), flush=True)
        asked = _equal(folder / "data", GIVEN | {"train.seed": seed})
        records = {name: _train(name, folder, settings) for name, settings in asked.items()}
        _tell(records)
        _predict(folder, found)
        page = report.write([folder / name for name in records], folder / "report.html")
    _paths(folder)
    print(f"report          {page}")
    print(f"{clock(time.monotonic() - began)} in all")
    return records


@contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """A new folder; what an earlier demo left there gives way, nothing else does. Stopped half way it stays, for the next demo."""
    if folder.exists() or folder.is_symlink():
        if not (folder / MARK).is_file():
            raise ValueError(f"{folder} exists and is not of an earlier demo; nothing is overwritten: name another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("written by `tokmix demo`, which may replace this folder\n", encoding="utf-8")
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt(f"stopped; the next demo starts anew, and replaces {folder}") from None


def _equal(data: Path, given: dict[str, object]) -> dict[str, Settings]:
    """Settings of both: the same but for the mixer, and the feed-forward width that makes them equal in parameters."""
    given = given | {"train.refit": False, "train.fit_time": False}  # both read the same rows as often
    plain = Settings.of(None, given | {"model.stack": TRANSFORMER})
    files = TokenFiles(data)
    wanted = TrainingTask(files, plain).config
    config = match_parameters(TrainingTask(files, Settings.of(None, given | {"model.stack": HYPERMIXER})).config, wanted)
    matched = {"model.stack": HYPERMIXER, "model.feed_forward": config.feed_forward}
    alone = {"model.stack": TRANSFORMER, "train.baseline": False}
    return {"hypermixer": Settings.of(None, given | matched), "transformer": Settings.of(None, given | alone)}


def _train(name: str, folder: Path, settings: Settings) -> JsonObject:
    """Shows the progress bar; the output of the run is dropped, because both results are printed together at the end."""
    print(f"\ntraining the {name}: {settings.model.stack}, width {settings.model.dim}", flush=True)
    with redirect_stdout(io.StringIO()):
        return run(folder / "data", folder / name, settings)


def _tell(records: dict[str, JsonObject]) -> None:
    kept, transformer = records["hypermixer"], records["transformer"]
    network, bag = kept.get("network_figures") or kept["figures"], kept["baseline"]
    cost = kept["cost"]
    rows = [["", "accuracy", "parameters", f"FLOPs, {cost['length']} tokens", "time"]]
    for name, record, figures in (("hypermixer", kept, network), ("transformer", transformer, transformer["figures"])):
        spent = record["cost"]
        rows.append([name, f"{figures['accuracy']:.4f}", f"{spent['parameters']:,}", f"{spent['flops']:,}", clock(spent["seconds"])])
    if bag is not None:
        rows.append(["bag of words", f"{bag['accuracy']:.4f}", f"{bag['features']:,} features", "-", clock(bag["seconds"])])
    count = kept["figures"]["rows"]
    print(
        f"\n{count:,} snippets of files that none of them was trained on, {len(snippets.PACKAGES)} classes of equal size\n{table(rows)}\n"
    )
    bars = [("transformer", transformer["figures"]["accuracy"]), ("hypermixer", network["accuracy"])]
    if bag is not None:
        bars += [("bag of words", bag["accuracy"]), ("tokmix train", kept["figures"]["accuracy"])]
    print(_chart(bars, 1 / len(snippets.PACKAGES)))
    print(f"guessing is right in {1 / len(snippets.PACKAGES):.3f} of cases")
    print(baseline.ABSENT if bag is None else f"`tokmix train` answers by the {kept['answers']['by']}, chosen on held-out rows of train")


def _chart(bars: list[tuple[str, float]], chance: float) -> str:
    """A bar for each figure, from the chance level on."""
    width = max(len(name) for name, _ in bars)
    return "\n".join(f"{name:<{width}}  {'█' * max(1, round(BAR * (value - chance) / (1 - chance)))} {value:.4f}" for name, value in bars)


def _predict(folder: Path, found: list[snippets.Snippet]) -> None:
    one = next(snippet for snippet in found if snippet.split == "test" and snippet.label == snippets.PACKAGES[0])
    trained = model_folder.load(folder / "hypermixer")
    predictor = Predictor(trained)
    answer = next(predictor([one.text]))
    print(f"\nA snippet of {one.file}:\n{textwrap.indent(one.text, '    ')}")
    print(f"predicted: {answer['label']} with probability {answer['probabilities'][answer['label']]:.2f}; right is {one.label}")
    print("\n".join(attribute(trained, [one.text], predictor=predictor).lines(count=5)[1:]))


def _paths(folder: Path) -> None:
    model = folder / "hypermixer" / "model"
    print(f"\nsnippets        {folder / 'snippets.jsonl'}\ntoken files     {folder / 'data'}")
    for name in ("hypermixer", "transformer"):
        print(f"{name:<15} {folder / name / 'model'}, learning curve {folder / name / 'curve.png'}")
    print(f"try: tokmix predict {model} {json.dumps('await loop.run_in_executor(None, task)')}")
