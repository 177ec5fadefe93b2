"""The demo on Python's own standard library: what its data is like, and the whole of it, made small."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tokmix.cli.demo import stdlib
from tokmix.cli.main import main
from tokmix.data import snippets
from tokmix.data.split import text_key
from tokmix.data.tokens import TokenFiles
from tokmix.training import model_folder
from tokmix.training.progress import Interrupted
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask


@pytest.fixture(scope="module")
def found() -> list[snippets.Snippet]:
    return snippets.collect(snippets.standard_library())


def test_classes_are_balanced_in_each_split(found):
    counts = Counter((one.split, one.label) for one in found)
    assert {label for _, label in counts} == set(snippets.PACKAGES)
    for split in ("train", "test"):
        assert len({counts[split, label] for label in snippets.PACKAGES}) == 1
    assert counts["train", "asyncio"] > 100 and counts["test", "asyncio"] > 20


def test_the_held_out_part_shares_no_file_with_the_rest(small, tmp_path):
    stdlib.main(tmp_path)
    task = TrainingTask(TokenFiles(tmp_path / "stdlib" / "data"), Settings.of(None, stdlib.GIVEN))
    rows = [json.loads(line) for line in (tmp_path / "stdlib" / "snippets.jsonl").read_text().splitlines()]
    files = [row["file"] for row in rows if row["split"] == "train"]
    assert task.held is not None and task.kept is not None
    assert {files[row] for row in task.held} and not {files[row] for row in task.held} & {files[row] for row in task.kept}


def test_no_file_is_in_two_splits_and_no_text_is_there_twice(found):
    splits: dict[str, set[str]] = {}
    for one in found:
        splits.setdefault(one.file, set()).add(one.split)
    assert all(len(there) == 1 for there in splits.values())
    assert len({text_key(one.text) for one in found}) == len(found)


def test_a_snippet_is_what_its_file_says(found):
    root = snippets.standard_library()
    for one in found[:: len(found) // 50]:
        assert one.file.split("/")[0] == one.label and "test" not in one.file.split("/")
        assert one.text in (root / one.file).read_text(encoding="utf-8", errors="ignore")
        assert snippets.SPOKEN <= len(one.text.splitlines()) <= snippets.LINES
    assert found == snippets.collect(root), "the same snippets every time"


def test_a_python_without_its_sources_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="holds no source of asyncio, email"):
        snippets.collect(tmp_path)
    for name in snippets.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n" * 40)
    with pytest.raises(ValueError, match="too little source"):
        snippets.collect(tmp_path)


@pytest.fixture
def small(monkeypatch):
    """A few steps on a few snippets."""
    monkeypatch.setattr(stdlib, "GIVEN", stdlib.GIVEN | {"model.dim": 16, "train.epochs": 1, "train.evaluations": 1})
    monkeypatch.setattr(stdlib, "VOCAB", 400)
    collect = snippets.collect
    monkeypatch.setattr(snippets, "collect", lambda root, most=None: collect(root, 12))


def test_the_demo_from_end_to_end(small, tmp_path, capsys):
    pytest.importorskip("sklearn")
    assert main(["demo", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    records = {
        name: json.loads((tmp_path / "stdlib" / name / "model" / "training.json").read_text()) for name in ("hypermixer", "transformer")
    }
    sizes = [record["cost"]["parameters"] for record in records.values()]
    assert abs(sizes[0] - sizes[1]) < 0.005 * sizes[1], "equal in size"
    for name, record in records.items():
        row = next(line.split() for line in shown.splitlines() if line.startswith(name) and "model" not in line)
        cost, network = record["cost"], record.get("network_figures") or record["figures"]
        assert row[:4] == [name, f"{network['accuracy']:.4f}", f"{cost['parameters']:,}", f"{cost['flops']:,}"]
    kept = records["hypermixer"]
    assert records["transformer"]["baseline"] is None
    assert re.search(rf"^bag of words +{kept['baseline']['accuracy']:.4f} ", shown, re.MULTILINE)
    assert re.search(rf"^tokmix train +█+ {kept['figures']['accuracy']:.4f}$", shown, re.MULTILINE)
    assert f"answers by the {kept['answers']['by']}, chosen on held-out rows" in shown
    assert "predicted: " in shown and "; right is " in shown
    assert re.search(r"^words for '\w+': ", shown, re.MULTILINE) and "without the strongest" in shown
    for path in ("snippets.jsonl", "data", "hypermixer/model", "transformer/model", "hypermixer/curve.png"):
        assert (tmp_path / "stdlib" / path).exists() and str(tmp_path / "stdlib" / path) in shown
    assert model_folder.load(tmp_path / "stdlib" / "hypermixer").labels == sorted(snippets.PACKAGES)


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
    assert Path(tmp_path / "out" / "stdlib" / "snippets.jsonl").is_file()
