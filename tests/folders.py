"""Folders as `train`, `tune` and `compare` write them, with made-up numbers: what a report reads, without training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

MACHINE = {"platform": "Linux", "cpu": "a test's", "cores": 2, "threads": 1, "gpu": None}
VERSIONS = {"python": "3.11", "torch": "2.13.0", "tokmix": "0.1.0", "numpy": "2.0"}
ENTRIES = {"hypermixing*2": 0.86, "attention*2": 0.83, "hsm*2": 0.8, "identity*2": 0.7}
FRACTIONS = (0.1, 0.25, 0.5, 1.0)


def cost(scale: float = 1.0, joules: float | None = None) -> dict[str, Any]:
    return {
        "parameters": round(20_000 * scale), "flops": round(1e6 * scale), "length": 12, "steps": 100, "tokens": 30_000,
        "seconds": 12.5 * scale, "processes": 1, "device": "cpu", "flops_forward": round(9e5 * scale), "flops_pointwise": 1000,
        "flops_training": round(2.7e6 * scale), "examples": 3000, "distinct_examples": 300, "trials": 1, "peak_memory_bytes": 300 * 2**20,
        "peak_memory_of": "process", "energy_joules": joules, "energy_source": "rapl" if joules else "not measured", "machine": MACHINE,
        "versions": VERSIONS,
    }  # fmt: skip


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def run(folder: Path, stack: str = "hypermixing*2", score: float = 0.8, seed: int = 0, scale: float = 1.0, **more: Any) -> Path:
    """Without weights: a report can say everything about it but who reads whom."""
    record = {
        "format": "tokmix-training", "version": 1, "tokmix": "0.1.0", "task": "classify", "labels": ["bad", "good"],
        "model": {"stack": stack, "dim": 16}, "settings": {"model": {"stack": stack}, "train": {"seed": seed, "lr": 0.01}, "prepare": {}},
        "data": {"splits": {"train": {"rows": 300, "tokens": 3000, "bytes": 9000}},
                 "source": [{"name": "films.csv", "sha256": "ab"}], "warnings": []},
        "split": "valid", "figures": {"rows": 40, "loss": 1 - score, "accuracy": score}, "baseline": {"accuracy": 0.75, "seconds": 0.2},
        "cost": cost(scale), **more,
    }  # fmt: skip
    write(folder / "run.json", {"source": "films.csv", "settings": record["settings"]})
    write(folder / "model" / "training.json", record)
    draw, lines = random.Random(seed), []
    for step in range(10, 110, 10):
        loss = math.exp(-step / 40) + 0.02 * draw.random()
        lines.append({"step": step, "total": 100, "epoch": 0, "loss": loss, "losses": [loss], "tokens": 300 * step, "seconds": step / 8})
        lines.append({"step": step, "total": 100, "epoch": 0, "held": {"rows": 30, "loss": loss + 0.1, "accuracy": score * (1 - loss / 2)}})
    lines.append({"step": 100, "epoch": 0, "cost": record["cost"]})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 110, "los', encoding="utf-8")
    return folder


def tune(folder: Path, trials: int = 30) -> Path:
    draw, known = random.Random(1), []
    for number in range(trials):
        lr, dropout = 10 ** draw.uniform(-8, -1), draw.uniform(0, 0.5)
        lost = lr > 0.05
        score = 0.5 if lost else 0.5 + 0.35 * math.exp(-((math.log10(lr) + 3) ** 2) / 4)
        known.append({
            "number": number, "parameters": {"train.lr": lr, "model.dropout": dropout}, "state": "diverged" if lost else "finished",
            "score": score, "seconds": 3.0, "cost": None if lost else cost(), "error": "the loss is not finite" if lost else None,
        })  # fmt: skip
    ordered = sorted(trial["score"] for trial in known)
    means = [ordered[-1] - 0.3 / n for n in range(1, trials + 1)]
    expected = {"mean": means, "deviation": [0.1 / n for n in range(1, trials + 1)]}
    write(folder / "tune.json", {
        "format": "tokmix-tune", "version": 1, "data": "films.csv", "space": {}, "seed": 3, "metric": "accuracy", "higher_is_better": True,
        "chance": 0.5, "trials": known, "evp": {"with_replacement": expected, "without_replacement": expected},
        "command": "tokmix tune films.csv --out tuned --trials 30", "tokmix": "0.1.0", "machine": MACHINE, "versions": VERSIONS,
    })  # fmt: skip
    best = max(known, key=lambda trial: trial["score"])
    run(folder / "trials" / f"{best['number']:04d}", score=best["score"])
    return folder


def compare(folder: Path, seeds: int = 3) -> Path:
    draw, runs, table = random.Random(2), [], []
    for place, (entry, top) in enumerate(ENTRIES.items()):
        for fraction in FRACTIONS:
            scores = [top - 0.25 * (1 - fraction) ** 2 + draw.gauss(0, 0.01) for _ in range(seeds)]
            for seed, score in enumerate(scores):
                lost = entry == "identity*2" and fraction == 0.1 and seed == 0
                key = f"runs/{place}-{fraction}-{seed}"
                if not lost:
                    run(folder / key, entry, score, seed, 1 + place / 2)
                runs.append({
                    "entry": entry, "seed": seed, "fraction": fraction, "state": "failed" if lost else "finished",
                    "score": None if lost else score,
                    "cost": None if lost else cost((1 + place / 2) * fraction, joules=40.0 * (1 + place / 2)),
                    "error": "out of memory" if lost else None,
                    "folder": key,
                })  # fmt: skip
            table.append({
                "entry": entry, "fraction": fraction, "mean": sum(scores) / seeds, "deviation": 0.01, "n": seeds,
                "cost": {"flops_training": 2.7e6 * (1 + place / 2), "seconds": 12.5, "energy_joules": None},
            })  # fmt: skip
    for fraction in FRACTIONS:
        table.append({"entry": "bag of words", "fraction": fraction, "mean": 0.74, "deviation": None, "n": 1, "cost": {"seconds": 0.1}})
    names = list(ENTRIES)
    tests = [
        {"a": a, "b": b, "fraction": 1.0, "difference": ENTRIES[a] - ENTRIES[b], "t_p": 0.01, "t_p_holm": 0.03, "bootstrap_p": 0.04,
         "bootstrap_p_holm": 0.2, "n_seeds": seeds, "n_examples": 40}
        for i, a in enumerate(names) for b in names[i + 1 :]
    ]  # fmt: skip
    write(folder / "compare.json", {
        "format": "tokmix-compare", "version": 1, "data": "films.csv", "task": "classify", "metric": "accuracy", "higher_is_better": True,
        "seeds": list(range(seeds)), "fractions": list(FRACTIONS),
        "entries": [{"name": name, "kind": "stack", "parameters": 20_000} for name in names]
        + [{"name": "bag of words", "kind": "bag of words", "parameters": 900}],
        "runs": runs, "table": table, "tests": tests, "command": "tokmix compare 'hypermixing*2' --data films.csv", "tokmix": "0.1.0",
        "machine": MACHINE, "versions": VERSIONS,
    })  # fmt: skip
    return folder
