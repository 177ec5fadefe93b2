"""The demo on Python's own standard library: what its data is like, and the whole of it, made small."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tokmix.cli.demo import lines, stdlib
from tokmix.cli.main import main
from tokmix.data.tokens import TokenFiles
from tokmix.training import model_folder
from tokmix.training.progress import Interrupted
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

FEW = {"train": 120, "test": 40}


@pytest.fixture(scope="module")
def found() -> list[lines.Pair]:
    return lines.collect(lines.standard_library())


def test_a_pair_is_what_its_file_says(found):
    root = lines.standard_library()
    for pair in found[:: len(found) // 50]:
        first, second = (pair.text1, pair.text2) if pair.label == lines.IN_ORDER else (pair.text2, pair.text1)
        there = [line.strip() for line in (root / pair.file).read_text(encoding="utf-8", errors="ignore").splitlines()]
        assert (first, second) in set(pairwise(there))
    assert found == lines.collect(root), "the same pairs every time"


def test_no_file_is_in_two_splits_and_no_pair_is_there_twice(found):
    splits: dict[str, set[str]] = {}
    for pair in found:
        splits.setdefault(pair.file, set()).add(pair.split)
    assert all(len(there) == 1 for there in splits.values())
    assert len({frozenset((pair.text1, pair.text2)) for pair in found}) == len(found)


def test_both_classes_are_as_frequent_in_each_split(found):
    counts = Counter((pair.split, pair.label) for pair in found)
    assert sum(counts.values()) == sum(lines.MOST.values())
    for split, most in lines.MOST.items():
        assert abs(counts[split, lines.SWAPPED] / most - 0.5) < 0.03


def test_a_python_without_its_sources_is_one_line(tmp_path):
    (tmp_path / "a.py").write_text("first = 1\nsecond = 2\n" * 40)
    with pytest.raises(ValueError, match="holds too little source") as error:
        lines.collect(tmp_path)
    assert "\n" not in str(error.value)


@pytest.fixture
def small(monkeypatch):
    """A few steps on a few pairs."""
    few = {"model.dim": 16, "train.epochs": 1, "train.evaluations": 1, "model.stack": "hsm"}
    monkeypatch.setattr(stdlib, "GIVEN", stdlib.GIVEN | few)
    monkeypatch.setattr(lines, "MOST", FEW)


def test_the_held_out_part_shares_no_file_with_the_rest(small, tmp_path):
    stdlib.main(tmp_path)
    task = TrainingTask(TokenFiles(tmp_path / "stdlib" / "data"), Settings.of(None, stdlib.GIVEN))
    rows = [json.loads(line) for line in (tmp_path / "stdlib" / "pairs.jsonl").read_text().splitlines()]
    files = [row["file"] for row in rows if row["split"] == "train"]
    assert task.held is not None and task.kept is not None
    assert {files[row] for row in task.held} and not {files[row] for row in task.held} & {files[row] for row in task.kept}


def test_the_demo_from_end_to_end(small, tmp_path, capsys):
    pytest.importorskip("sklearn")
    assert main(["demo", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "stdlib" / "run" / "model" / "training.json").read_text())
    network = record.get("network_figures") or record["figures"]
    for name, figures in (("bag of words", record["baseline"]), ("network", network), ("tokmix train", record["figures"])):
        assert re.search(rf"^{name} +█+ {figures['accuracy']:.4f}$", shown, re.MULTILINE)
    assert re.search(rf"^network +{network['accuracy']:.4f} +{record['cost']['parameters']:,} parameters", shown, re.MULTILINE)
    assert re.search(rf"^bag of words +{record['baseline']['accuracy']:.4f} +{record['baseline']['features']:,} features", shown, re.M)
    assert f"answers by the {record['answers']['by']}, chosen on held-out rows" in shown and f"{FEW['test']} pairs from files" in shown
    assert "predicted: " in shown and "; right is swapped" in shown
    assert re.search(r"^words for '[\w ]+': ", shown, re.MULTILINE) and "without the strongest" in shown
    for path in ("pairs.jsonl", "run/model", "run/curve.png", "report.html"):
        assert (tmp_path / "stdlib" / path).exists() and str(tmp_path / "stdlib" / path) in shown
    assert model_folder.load(tmp_path / "stdlib" / "run").labels == [lines.IN_ORDER, lines.SWAPPED]
    shown = next(line for line in shown.splitlines() if line.startswith("try: tokmix "))
    assert main(shown.removeprefix("try: tokmix ").split()) == 0
    assert json.loads(capsys.readouterr().out)["label"] in (lines.IN_ORDER, lines.SWAPPED)


def test_a_second_demo_replaces_the_first_and_nothing_else(small, tmp_path, capsys, monkeypatch):
    mine = tmp_path / "mine" / "stdlib"
    mine.mkdir(parents=True)
    (mine / "note.txt").write_text("keep")
    assert main(["demo", "--out", str(tmp_path / "mine")]) == 1
    said = capsys.readouterr().err
    assert "is not of an earlier demo; nothing is overwritten" in said and len(said.splitlines()) == 1
    assert [path.name for path in mine.iterdir()] == ["note.txt"]

    def stopped(*given, **named):
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(stdlib, "run", stopped)
    for _ in range(2):  # the second finds what the first left
        assert main(["demo", "--out", str(tmp_path / "out")]) == 130
        assert "the next demo starts anew" in capsys.readouterr().err
    assert Path(tmp_path / "out" / "stdlib" / "pairs.jsonl").is_file()


def test_a_file_in_place_of_the_folder_is_named(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path / "notes.txt")]) == 1
    assert capsys.readouterr().err == f"tokmix demo: {tmp_path / 'notes.txt'} is a file: name a folder with --out\n"
