"""--report-to: a tracker is told what log.jsonl holds, in the run's folder, without a network; a missing package is one line."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from pathlib import Path

import pytest

from tokmix.cli.main import main
from tokmix.training import trackers

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{'good' if n % 2 else 'bad'} film {n},{n % 2}\n" for n in range(80)))
    return str(path)


def train(table: str, out: Path, kind: str) -> int:
    small = ["--stack", "identity", "--model.dim", "8", "--train.steps", "20", "--prepare.vocab", "120"]
    return main(["train", table, "--out", str(out), "--report-to", kind, *small])


def losses(out: Path) -> dict[int, float]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def test_a_missing_package_is_named_before_anything_is_written(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    assert train(table, tmp_path / "run", "wandb") == 1
    assert "needs the package wandb: pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert train(table, tmp_path / "run", "tensorbord") == 1
    assert "tensorboard" in capsys.readouterr().err


def test_an_entry_becomes_figures() -> None:
    seen: list[tuple[dict[str, float], int]] = []
    tracker = trackers.Tracker(lambda figures, step: seen.append((figures, step)), lambda: None)
    tracker({"step": 10, "loss": 0.5, "tokens": 99, "epoch": 0, "losses": [0.5]})
    tracker({"step": 20, "epoch": 1, "held": {"accuracy": 0.75, "note": "x"}})
    assert seen[0] == ({"train/loss": 0.5, "train/tokens": 99.0, "train/epoch": 0.0}, 10)
    assert seen[1] == ({"train/epoch": 1.0, "held/accuracy": 0.75}, 20)


@pytest.mark.slow
def test_tensorboard_holds_the_losses_of_the_log(table: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(table, tmp_path / "run", "tensorboard") == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("train/loss")}
    assert found == pytest.approx(losses(tmp_path / "run"), rel=1e-6) and found
    assert "held/accuracy" in events.Tags()["scalars"]


@pytest.mark.slow
def test_mlflow_holds_the_losses_of_the_log(table: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    assert train(table, tmp_path / "run", "mlflow") == 0
    with sqlite3.connect(tmp_path / "run" / "mlflow.db") as store:
        found = dict(store.execute("select step, value from metrics where key = 'train/loss'").fetchall())
    assert found == pytest.approx(losses(tmp_path / "run")) and found


@pytest.mark.slow
def test_wandb_writes_offline(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert train(table, tmp_path / "run", "wandb") == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))


@pytest.mark.slow
def test_trackio_keeps_the_losses_in_the_run(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("trackio") is None:  # not imported here: it reads its folder as it is imported
        pytest.skip("trackio is not installed")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    assert train(table, tmp_path / "run", "trackio") == 0
    (store,) = (tmp_path / "run" / "trackio").glob("*.db")
    with sqlite3.connect(store) as database:
        rows = [json.loads(figures) for (figures,) in database.execute("select metrics from metrics order by step").fetchall()]
    found = [figures["train/loss"] for figures in rows if "train/loss" in figures]
    assert found == pytest.approx(list(losses(tmp_path / "run").values())) and found
