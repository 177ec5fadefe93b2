"""`tokmix bench user`: processes from start to end, beside rivals. No test looks at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.speed import user
from bench.speed.session import Session
from bench.speed.settings import BenchSettings
from tests.benches import quick
from tokmix.cli.main import main


@pytest.mark.slow
def test_every_command_is_measured_beside_its_rivals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = quick("user", out=tmp_path / "user.json")
    printed = capsys.readouterr().out
    assert code == 0 and found["left_out"] == []
    rows = {(row["name"], row["body"]): row for row in found["rows"]}
    assert {name for name, _ in rows} == {user.TABLE, user.TEXT, user.FINE, user.PREDICT, user.PREDICT_FINE, user.DECODE}
    assert all(f"\n{name} " in printed for name, _ in rows)
    for (name, by), row in rows.items():
        assert row["seconds"] > row["import_s"] > 0 and row["rate"] > 0, (name, by)
        assert (row["times"] is None) == by.startswith("tokmix") or row["unit"] != rows[name, "tokmix train"]["unit"]
    for name, by in ((user.PREDICT, "linear SVM on TF-IDF"), (user.DECODE, "Hugging Face GPT-2"), (user.FINE, "Hugging Face BERT")):
        ours = next(row for (one, _), row in rows.items() if one == name)
        assert rows[name, by]["times"] == pytest.approx(ours["rate"] / rows[name, by]["rate"]) and "tokmix" in ours["command"]
    assert (tmp_path / "user.png").stat().st_size > 5000


def test_a_table_without_the_columns_is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text("text,score\nso it goes,1\n")
    assert main(["bench", "user", "--quick", "--device", "cpu", "--data", str(tmp_path / "table.csv")]) == 1
    said = capsys.readouterr().err
    assert "reads the columns text and label, and table.csv has no 'label'" in said and len(said.splitlines()) == 1


def test_a_table_of_ones_own_is_divided_by_its_texts(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "word {at}", "label": {at % 2}}}\n' for at in range(200))
    (tmp_path / "own.jsonl").write_text(rows)
    session = Session(BenchSettings("user", quick=True, device="cpu", data=tmp_path / "own.jsonl"), say=lambda line: None)
    work = user.Work(session, tmp_path, "cpu", user.QUICK, 1.0)
    user._data(work)
    train, test = (path.read_text().splitlines() for path in (work.train, work.test))
    assert 10 < len(test) < 60 and len(train) + len(test) == 200 and not {*train} & {*test}
    assert len(work.predicted.read_text().splitlines()) == user.QUICK.predicted


def test_a_command_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    session = Session(BenchSettings("user", quick=True, device="cpu"), say=lambda line: None)
    with pytest.raises(ValueError, match="bench user: nothing ended with 1: KeyError: 'nothing'"):
        user.Work(session, tmp_path, "cpu", user.QUICK, 1.0).run("nothing")
