"""`tokmix bench user`: whole commands as a user runs them, from the start of the process to its end, next to other tools.

train a table    `tokmix train`              a linear SVM on TF-IDF; the best handwritten loop for the same model
train a text     `tokmix train`              the same kind of loop
fine-tune        `tokmix train --from`       a loop around Hugging Face's BERT of the encoder's size
predict          `tokmix predict`            the SVM; that BERT
decode           `tokmix generate`           Hugging Face's generate, GPT-2 of the trained model's size

Rates are of the work alone; `seconds` is the whole process, `imports` the part of it until everything is imported. Text is Python's own
standard library, or a table of one's own. Short processes run in turns, and their medians count.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.speed.session import Row, Session
from tokmix.core.stack import parse

MINUTES, TURNS = 12.0, 3
TABLE, TEXT, FINE = "train a table", "train a text", "fine-tune"
PREDICT, PREDICT_FINE, DECODE = "predict", "predict, fine-tuned", "decode"
SHARES = {"table": 0.3, "text": 0.2, "fine": 0.15}  # of the minutes of a device, at most
MODULES = {
    "train": ["torch", "tokmix.training.train"],
    "pretrain": ["torch", "tokmix.training.train"],
    "predict": ["torch", "tokmix.training.predict"],
    "generate": ["torch", "tokmix.training.generate"],
}


@dataclass(frozen=True)
class Sizes:
    a_class: int | None = None  # snippets for training
    megabytes: float = 2.0  # of running text
    predicted: int = 2000  # rows
    new: int = 256  # tokens
    encoder: tuple[str, ...] = ("--stack", "hypermixing(heads=4)*4", "--model.dim", "256")
    steps: int | None = None  # of every training, instead of minutes
    turns: int = TURNS


QUICK = Sizes(40, 0.05, 40, 8, ("--stack", "hypermixing(heads=2)", "--model.dim", "16"), 2, turns=1)


@dataclass
class Work:
    """The files of one device's measurements, and how its processes are started."""

    session: Session
    folder: Path
    device: str
    sizes: Sizes
    minutes: float
    train: Path = field(default_factory=Path)
    test: Path = field(default_factory=Path)
    predicted: Path = field(default_factory=Path)

    def run(self, kind: str, args: Sequence[str] = (), **given: object) -> Row | None:
        """Run one process; None and a note if a rival is not installed. A failure ends the benchmark with the process's last line."""
        asked, found, log = (self.folder / name for name in ("given.json", "found.json", "log.txt"))
        env = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {})
        if self.session.asked.threads is not None:
            env["OMP_NUM_THREADS"] = str(self.session.asked.threads)
        found.unlink(missing_ok=True)
        began = time.time()
        fixed = {"kind": kind, "args": args, "device": self.device, "spawned": began, "rows": self.sizes.predicted}
        asked.write_text(json.dumps(fixed | {"predict": str(self.predicted)} | given))
        with log.open("w") as stream:
            done = subprocess.run([sys.executable, "-m", "bench.speed.user_child", asked, found], stdout=stream, stderr=stream, env=env)
        seconds = time.time() - began
        if done.returncode:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"bench user: {' '.join([kind, *args])} ended with {done.returncode}: {last}")
        result: Row = json.loads(found.read_text())
        if "absent" in result:
            self.session.note(f"{kind}: {result['absent']}")
            return None
        return result | {"seconds": seconds}

    def command(self, *args: str | Path) -> Row:
        """`tokmix ARGS`"""
        words = [str(arg) for arg in args]
        found = self.run("command", words, modules=MODULES[words[0]])
        assert found is not None
        return found | {"command": "tokmix " + " ".join(Path(word).name if word.startswith(str(self.folder)) else word for word in words)}

    def training(self, out: str, data: Path, *more: str, share: str) -> tuple[Row, Row]:
        """A run, and its record."""
        budget = (
            ("--minutes", f"{self.minutes * SHARES[share]:.2f}") if self.sizes.steps is None else ("--train.steps", str(self.sizes.steps))
        )
        found = self.command("train", data, "--out", self.folder / out, "--train.device", self.device, *budget, *more)
        record: Row = json.loads((self.folder / out / "model" / "training.json").read_text())
        cost = record["cost"]
        found |= {"rate": cost["tokens"] / cost["seconds"], "unit": "tokens/s", "parameters": cost["parameters"], "steps": cost["steps"]}
        return found, record

    def add(self, what: str, by: str, found: Row | None, **more: object) -> None:
        if found is not None:
            self.session.add({"name": what, "body": by, "device": self.device, "load": os.getloadavg()[0]} | found | more)


def run(session: Session) -> None:
    devices = ["cpu", "cuda"] if session.device == "cuda" and not session.named_device else [session.device]
    minutes = (session.asked.minutes or MINUTES) / len(devices)
    for device in devices:
        folder = Path(tempfile.mkdtemp(prefix="tokmix-bench-"))
        work = Work(session, folder, str(device), QUICK if session.asked.quick else Sizes(), minutes)
        try:
            _data(work)
            for part in (_tables, _texts, _fine_tuning):
                part(work)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    _compare(session.rows)
    session.save()


def _data(work: Work) -> None:
    """Train and test tables as rows of text and label, the rows to predict, and running text."""
    from bench.speed import snippets

    library = snippets.standard_library()
    if work.session.asked.data is None:
        found = [(one.text, one.label, one.split) for one in snippets.collect(library, work.sizes.a_class)]
    else:
        found = _table_of(work.session.asked.data)
    rows = [{"text": text, "label": label, "split": split} for text, label, split in found]
    train, test = ([row for row in rows if row["split"] == name] for name in ("train", "test"))
    work.train, work.test, work.predicted = (work.folder / f"{name}.jsonl" for name in ("train", "test", "predict"))
    many = [{"text": (test + train)[at % len(rows)]["text"]} for at in range(work.sizes.predicted)]
    for path, part in ((work.train, train), (work.test, test), (work.predicted, many), (work.folder / "table.jsonl", rows)):
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    source = "\n\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("*.py")))
    (work.folder / "text.txt").write_text(source[: int(work.sizes.megabytes * 1e6)], encoding="utf-8")


def _table_of(path: Path) -> list[tuple[str, str, str]]:
    """(text, label, split) of a table with these columns; 15 % of its texts are for the test."""
    from tokmix.data.read.files import open_source
    from tokmix.data.split import place, text_key

    found = []
    for part in open_source(path):
        if absent := [name for name in ("text", "label") if name not in part.columns()]:
            raise ValueError(f"--data {path}: bench user reads the columns text and label, and {part.name} has no {absent[0]!r}")
        found += [(str(text), str(label)) for _, (text, label) in part.rows(["text", "label"])]
    return [(text, label, place(text_key(text), 0, 0.15)) for text, label in found]


def _tables(work: Work) -> None:
    """Training on a table with all defaults, then predictions by that model."""
    found, record = work.training("table", work.folder / "table.jsonl", share="table")
    work.add(TABLE, "tokmix train", found, quality=record["figures"]["accuracy"], measure="accuracy")
    length = round(record["data"]["splits"]["train"]["tokens"] / record["data"]["splits"]["train"]["rows"])
    work.add(TABLE, "a loop by hand", _loop(work, record, length), unit="tokens/s")
    rows: dict[str, list[Row]] = {}
    for _ in range(work.sizes.turns):
        ours = work.command("predict", work.folder / "table" / "model", work.predicted)
        rate = work.sizes.predicted / (ours["seconds"] - ours["import_s"])
        rows.setdefault("tokmix predict", []).append(ours | {"rate": rate})
        if (svm := work.run("svm", train=str(work.train), test=str(work.test))) is not None:
            rows.setdefault("linear SVM on TF-IDF", []).append(svm | {"rate": svm["predicted_per_s"]})
    if svms := rows.get("linear SVM on TF-IDF"):
        work.add(TABLE, "linear SVM on TF-IDF", _median(svms, "rows_per_s"), unit="rows/s", quality=svms[0]["accuracy"], measure="accuracy")
    for by, turns in rows.items():
        work.add(PREDICT, by, _median(turns, "rate"), unit="rows/s", rows=work.sizes.predicted)


def _texts(work: Work) -> None:
    """Training on running text, then text by that model."""
    found, record = work.training("text", work.folder / "text.txt", share="text")
    work.add(TEXT, "tokmix train", found, quality=record["figures"]["bits_per_byte"], measure="bits per byte")
    model = record["model"]
    work.add(TEXT, "a loop by hand", _loop(work, record, model["max_len"]), unit="tokens/s")
    prompt = " ".join((work.folder / "text.txt").read_text(encoding="utf-8").split()[:100])
    sized = {"layers": len(parse(model["stack"])), **{name: model[name] for name in ("vocab", "dim", "feed_forward")}}
    rows: dict[str, list[Row]] = {}
    for _ in range(work.sizes.turns):
        asked = ("--prompt", prompt, "--max-new", str(work.sizes.new), "--seed", "0")
        rows.setdefault("tokmix generate", []).append(work.command("generate", work.folder / "text" / "model", *asked))
        if (gpt2 := work.run("gpt2", prompt=128, new=work.sizes.new, **sized)) is not None:
            rows.setdefault("Hugging Face GPT-2", []).append(gpt2)
    for by, turns in rows.items():
        work.add(DECODE, by, _median(turns, "tokens_per_s"), unit="tokens/s")


def _fine_tuning(work: Work) -> None:
    """One epoch from an encoder: the one given, or a small one with random weights, since only speed is measured."""
    encoder = work.session.asked.encoder
    if encoder is None:
        out = work.folder / "encoder"
        work.command(
            "pretrain", work.folder / "text.txt", "--out", out, *work.sizes.encoder, "--train.steps", "1", "--train.device", work.device
        )
        encoder = str(out)
    more = () if work.sizes.steps else ("--train.epochs", "1")
    found, record = work.training("fine", work.train, "--from", encoder, "--no-train.baseline", *more, share="fine")
    rows = record["data"]["splits"]["train"]["rows"] if "train" in record["data"]["splits"] else 0
    model, cost = record["model"], record["cost"]
    found |= {"rate": cost["examples"] / cost["seconds"], "unit": "rows/s", "rows": rows}
    work.add(FINE, "tokmix train --from", found)
    sized = {"layers": len(parse(model["stack"])), "dim": model["dim"], "feed_forward": model["feed_forward"]}
    folder = work.folder / "fine" / "model"
    seconds = work.minutes * 60 * SHARES["fine"]
    bert = work.run("bert", train=str(work.train), test=str(work.test), tokenizer=str(folder / "tokenizer.json"), seconds=seconds, **sized)
    if bert is not None:
        work.add(FINE, "Hugging Face BERT", bert, rate=bert["rows_per_s"], unit="rows/s")
    ours = work.command("predict", folder, work.predicted)
    rate = work.sizes.predicted / (ours["seconds"] - ours["import_s"])
    work.add(PREDICT_FINE, "tokmix predict", ours, rate=rate, unit="rows/s")
    if bert is not None:
        work.add(PREDICT_FINE, "Hugging Face BERT", bert, rate=bert["predicted_per_s"], unit="rows/s")


def _loop(work: Work, record: Row, length: int) -> Row | None:
    tokens = record["settings"]["train"]["tokens"] or 4096
    found = work.run("loop", config=record["model"], tokens=tokens, length=length)
    return None if found is None else found | {"rate": found["tokens_per_s"]}


def _median(turns: list[Row], key: str) -> Row:
    """The median turn, with all rates."""
    rates = [turn[key] for turn in turns]
    return {name: statistics.median(turn[name] for turn in turns) for name in ("seconds", "import_s")} | {
        "rate": statistics.median(rates), "rates": rates, **({"command": turns[0]["command"]} if "command" in turns[0] else {})
    }  # fmt: skip


def _compare(rows: list[Row]) -> None:
    """Ratios to the rate of each rival in the same unit."""
    for row in rows:
        ours = next(one for one in rows if one["name"] == row["name"] and one["device"] == row["device"])
        row["times"] = ours["rate"] / row["rate"] if row is not ours and ours["unit"] == row["unit"] else None
