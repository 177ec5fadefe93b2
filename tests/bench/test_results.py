"""The committed measurements: each line says what, when, where and by which code."""

from __future__ import annotations

import json
from pathlib import Path

LINES = [json.loads(line) for line in (Path(__file__).parents[2] / "bench" / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_measurement_names_its_date_commit_and_command() -> None:
    names = [line["name"] for line in LINES]
    assert len(names) == len(set(names)) >= 40
    for line in LINES:
        assert line["date"] and line["commit"] and line["command"], line["name"]
        assert ("numbers" in line) != ("text" in line), f"{line['name']}: numbers of a run, or its log"


def test_a_ratio_is_that_of_the_turns() -> None:
    record = next(line for line in LINES if line["name"] == "bench_decode_models_cpu")["numbers"]
    rates = {(row["name"], row["body"]): row["rates"] for row in record["models"]}
    best = [max(pair) for pair in zip(rates["GPT-2", "DynamicCache"], rates["GPT-2", "StaticCache"], strict=True)]
    for row in record["models"]:
        ratios = sorted(rate / other for rate, other in zip(row["rates"], best, strict=True))
        assert abs(row["ratio"] - ratios[len(ratios) // 2]) < 1e-9
