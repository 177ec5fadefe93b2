"""Which shipped encoder a default run starts from: by the kind of rows, the language, the length of the rows and the time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import tokmix
from tests.lab import REST
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.runs.files import read_json
from tokmix.training import automatic, encoder
from tokmix.training.settings import NO_ENCODER, Settings

WORDS = [*REST.split(), "fine", "bright", "warm", "lovely", "dull", "grey", "cold", "awful"]
QUICK = ["--train.steps", "4", "--train.threads", "1", "--no-train.baseline"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of two tiny encoders, as `pip install tokmix-encoders` leaves it."""
    folder = tmp_path_factory.mktemp("site")
    draw = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(draw.choices(WORDS, k=12)) for _ in range(400)) + "\n")
    (folder / encoder.PACKAGE).mkdir()
    (folder / encoder.PACKAGE / "__init__.py").write_text("")
    settings = {"model.dim": 16, "model.length": 32, "train.steps": 2, "train.threads": 1, "prepare.vocab": 300}
    for name, stack in (("small", "hsm, hypermixing(heads=2)"), ("hybrid", "hsm, attention(heads=2)")):
        tokmix.pretrain(text, folder / "run" / name, stack=stack, **settings)
        (folder / "run" / name / "model").rename(folder / encoder.PACKAGE / name)
    return folder


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.delenv(automatic.VARIABLE)


def write_rows(path: Path, *, pair: bool = False, words: list[str] = WORDS, count: int = 9, rows: int = 120) -> Path:
    draw = random.Random(1)

    def one() -> str:
        return " ".join(draw.choices(words, k=count))

    lines = ["sentence1\tsentence2\tlabel" if pair else "text\tlabel"]
    lines += [f"{one()}\t" + (f"{one()}\t" if pair else "") + draw.choice("ab") for _ in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def chosen(data: Path, said: list[str], **settings: object) -> str | None:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return automatic.settled(data, data.parent / "no run", Settings.of(None, given), torch.device("cpu"), said.append).train.start


@pytest.mark.usefixtures("installed")
def test_the_kind_of_rows_decides(tmp_path: Path) -> None:
    said: list[str] = []
    assert chosen(write_rows(tmp_path / "one.tsv"), said) == "small"
    assert chosen(write_rows(tmp_path / "two.tsv", pair=True), said) == "hybrid"
    assert chosen(write_rows(tmp_path / "one.tsv"), said, train__task="classify", train__epochs=2) == "small"
    assert said == []


@pytest.mark.usefixtures("installed")
def test_what_was_asked_for_is_left_alone(tmp_path: Path) -> None:
    table, said = write_rows(tmp_path / "rows.tsv"), list[str]()
    assert chosen(table, said, train__start="elsewhere") == "elsewhere"
    assert chosen(table, said, train__start=NO_ENCODER) == NO_ENCODER
    for name, value in (("model.stack", "hsm"), ("model.dim", 32), ("train.pretrain", 3), ("train.task", "mlm"), ("prepare.vocab", 200)):
        assert chosen(table, said, **{name.replace(".", "__"): value}) is None, name
    prepare(table, tmp_path / "prepared")
    assert chosen(tmp_path / "prepared", said) is None
    (tmp_path / "novel.txt").write_text("the film was a film in the house\n" * 50)
    assert chosen(tmp_path / "novel.txt", said) is None
    assert said == []


@pytest.mark.usefixtures("installed")
def test_a_table_that_does_not_fit_is_trained_from_nothing_and_it_says_why(tmp_path: Path) -> None:
    for name, words, count, why in (
        ("german", ["Kündigung", "Bestätigung", "Verpackung", "beschädigt"], 9, "trained on English, and these texts read otherwise"),
        ("letters", ["привет", "мир"], 9, "trained on English"),
        ("long", WORDS, 60, "100 % of the rows are longer than the 32 tokens that small reads"),
    ):
        said: list[str] = []
        assert chosen(write_rows(tmp_path / f"{name}.tsv", words=words, count=count), said) == NO_ENCODER
        assert len(said) == 1 and why in said[0] and "--from small" in said[0], said


@pytest.mark.usefixtures("installed")
def test_the_time_of_the_run_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "_pace", lambda *args: 0.1)  # seconds of a row
    one, two, said = write_rows(tmp_path / "one.tsv"), write_rows(tmp_path / "two.tsv", pair=True), list[str]()
    assert chosen(one, said, train__minutes=0.5) == "small" and not said  # 12 s of 30
    assert chosen(one, said, train__minutes=0.3) == NO_ENCODER
    assert "small would take about 0:12 to go once over 120 rows, and the run has 0:18" in said.pop()
    assert chosen(two, said, train__minutes=0.7) == "hybrid" and not said  # three times 12 s to train on, of 42
    assert chosen(two, said, train__minutes=0.5) == NO_ENCODER and said
    assert chosen(one, said, train__epochs=1) == "small"


def test_without_the_package_nothing_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "PACKAGE", "no_such_package")
    monkeypatch.delenv(automatic.VARIABLE)
    assert chosen(write_rows(tmp_path / "rows.tsv"), []) is None


@pytest.mark.usefixtures("installed")
def test_a_default_run_starts_from_it_and_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "rows.tsv")
    assert main(["train", str(table), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert "starts from the encoder small" in capsys.readouterr().out
    assert read_json(tmp_path / "run" / "run.json")["settings"]["train"]["start"] == "small"
    record = read_json(tmp_path / "run" / "model" / "training.json")
    assert record["encoder"]["name"] == "small"
    # Killed before its model was written, and resumed by the same command: the same weights, whatever would be chosen today.
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model").rename(tmp_path / "before")
    monkeypatch.setenv(automatic.VARIABLE, NO_ENCODER)
    assert main(["train", str(table), "--out", str(tmp_path / "run"), *QUICK, "--resume"]) == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert main(["train", str(table), "--out", str(tmp_path / "run"), *QUICK, "--resume", "--no-from"]) == 1
    assert "train.start='none', was 'small'" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("refusal", [["--no-from"], ["--from", "none"]])
def test_it_can_be_refused(refusal: list[str], tmp_path: Path) -> None:
    table = write_rows(tmp_path / "rows.tsv")
    assert main(["train", str(table), "--out", str(tmp_path / "run"), *QUICK, "--model.dim", "16", *refusal]) == 0
    assert read_json(tmp_path / "run" / "model" / "training.json")["encoder"] is None
