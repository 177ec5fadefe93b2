"""`tokmix verify`: every kind of folder, whole and with a byte changed; and records that a user may have damaged are one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import settings, write_table
from tokmix.cli.main import main
from tokmix.core.checks import printable
from tokmix.runs.files import Damaged
from tokmix.study.compare import outcomes
from tokmix.study.compare.result import RunResult
from tokmix.study.verify import verify
from tokmix.training.train import run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    given = settings(train__steps=4, train__save_steps=2, train__pretrain=1, train__evaluations=1, train__rows=16)
    run(write_table(folder / "t.csv", 60), folder / "run", given, quiet=True)
    return folder


CHANGED = [
    "model/model.safetensors", "model/config.json", "model/README.md", "model/training.json", "data/train-00000.tokens.bin",
    "data/card.json", "data/tokenizer.json", "checkpoints/step-00000004.safetensors", "warmup/weights.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_byte_is_found_wherever_it_is(name, made, tmp_path, capsys):
    shutil.copytree(made / "run", tmp_path / "run")
    assert main(["verify", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert said.endswith(" checked, 0 damaged\n") and "whole" in said
    path = tmp_path / "run" / name
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)
    assert main(["verify", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().out
    assert said.endswith(", 1 damaged\n") and f"damaged      {tmp_path / 'run' / Path(name).parts[0]}" in said


def test_verify_says_what_is_no_folder_of_ours(tmp_path, capsys):
    for folder, words in ((tmp_path, "is no folder of tokmix"), (tmp_path / "no", "no folder")):
        assert main(["verify", str(folder)]) == 1
        assert words in capsys.readouterr().err


def test_a_study_is_looked_through(made, tmp_path):
    (tmp_path / "study.json").write_text("{}")
    shutil.copytree(made / "run", tmp_path / "trials" / "0000")
    assert {one.state for one in verify(tmp_path)} == {"whole", "no checksum"}
    (tmp_path / "tune.json").write_text('{"score": NaN}')
    assert [one.path.name for one in verify(tmp_path) if one.state == "damaged"] == ["tune.json"]


@pytest.mark.parametrize("content", ["", "[]", "{" * 5000, '{"model": 3}', '{"a":' * 3000, "\0\0", '{"source": 3, "settings": {}}'])
def test_a_damaged_run_record_is_one_line(content, made, tmp_path, capsys):
    shutil.copytree(made / "run", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    assert main(["train", str(made / "t.csv"), "--out", str(tmp_path / "run"), "--resume"]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "run.json" in said, said


def test_results_have_a_checksum(tmp_path):
    path = tmp_path / "result.json"
    RunResult("finished", 0.5, "accuracy", True, {"seconds": 1.0}).write(path)
    assert RunResult.read(path).score == 0.5
    for old, new, words in (
        ("0.5", "0.6", "has changed"),
        ("0.5", "NaN", "not JSON"),
        ("0.5", "null", "no score"),
        ('"finished"', "3", "state"),
    ):
        RunResult("finished", 0.5, "accuracy", True, {"seconds": 1.0}).write(path)
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(ValueError, match=words):
            RunResult.read(path)
    path.write_text(json.dumps({"score": 0.5, "cost": {}}))
    assert RunResult.read(path).state == "finished", "as the first ones were written"


def test_damaged_sums_are_one_line(tmp_path):
    import numpy as np

    outcomes.save(tmp_path, np.ones((50, 2)))
    good = (tmp_path / outcomes.FILE).read_bytes()
    for content in (b"", good[:40], good[:-30], good[:90] + b"\xff" + good[91:]):
        (tmp_path / outcomes.FILE).write_bytes(content)
        with pytest.raises(Damaged, match=r"examples\.npz is damaged"):
            outcomes.load(tmp_path)


def test_control_characters_are_shown_and_not_sent():
    assert printable("a\x1b[31m\tb\n\x9b0m\u202e\x00é🙂") == "a\\x1b[31m\tb\n\\x9b0m\\u202e\\x00é🙂"


def test_a_label_with_an_escape_does_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("text,label\n" + "a b,\x1b[2Jx\nc d,y\n" * 20)
    assert main(["prepare", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out"), "--vocab", "60"]) == 0
    said = capsys.readouterr()
    assert "\x1b[2J" not in said.out and "\\x1b[2Jx" in said.out
    (tmp_path / "u.csv").write_text("text,label\n" + "a b,x\nc d,y\n" * 20)
    assert main(["prepare", str(tmp_path / "u.csv"), "--out", str(tmp_path / "o\x1b[2J" / "x" / ".." / "t.csv"), "--text", "\x1b[2J"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_debug_shows_where(monkeypatch, capsys, tmp_path):
    def fail(folder: object) -> None:
        raise KeyError("deep\nthing")

    monkeypatch.setattr("tokmix.study.verify.verify", fail)
    assert main(["verify", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.startswith("tokmix verify: KeyError") and "--debug" in said
    with pytest.raises(KeyError):
        main(["verify", str(tmp_path), "--debug"])


def test_an_error_stays_short_whatever_a_file_says(made, tmp_path, capsys):
    shutil.copytree(made / "run" / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stack": "x" * 300_000}))
    assert main(["predict", str(tmp_path / "model"), "a b"]) == 1
    said = capsys.readouterr().err
    assert "unknown mixer 'xxx" in said and said.endswith("x...\n") and len(said) < 5000 and said.count("\n") == 1


@pytest.mark.parametrize(("states", "code"), [(["finished", "not available"], 0), (["finished", "failed"], 1)])
def test_compare_with_a_failed_run_ends_with_an_error_code(states, code, monkeypatch, tmp_path):
    from tokmix.api import search

    found = search.Comparison(tmp_path, {"runs": [{"state": state, "seed": 0} for state in states]})
    monkeypatch.setattr(search, "compare", lambda *given, **named: found)
    assert main(["compare", "hsm", "--data", "t.csv", "--out", str(tmp_path / "out")]) == code
