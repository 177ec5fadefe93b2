"""A linear head on a frozen encoder: when it is chosen, what it learns, and that the model is one like any other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("sklearn")

import tokmix
from tests.lab import BAD, GOOD, REST, write_scores, write_table, write_text
from tokmix.core.optional import np
from tokmix.training import frozen, model_folder

PLAIN = {"train.threads": 1, "train.baseline": False}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    text = write_text(folder / "texts", documents=120)
    (text.parent / "texts" / "more.txt").write_text(f"{GOOD} {BAD}\n" * 40)
    tokmix.pretrain(text.parent / "texts", folder / "run", stack="hsm, hypermixing(shift=1)", **{
        "model.dim": 32, "model.length": 32, "train.threads": 1, "prepare.vocab": 300, "train.steps": 20,
    })  # fmt: skip
    return folder / "run"


def test_the_head_is_that_of_the_regression_whatever_the_scale_of_features() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 6)) * [1, 10, 0.1, 1, 1, 1] + 3
    classes = features[:, [0, 3, 4]].argmax(1)
    head = frozen.solve("classify", features, classes, 4, 1.0, None, False)  # class 3 has no row
    said = head.scores(features).argmax(-1)
    assert (said == classes).mean() > 0.9 and head.scores(features)[:, 3].max() < -10
    scores = features @ [2, 0.1, 5, 0, 0, 0] + 700
    ridge = frozen.solve("regress", features, scores, 1, 100.0, None, False)
    assert np.abs(ridge.scores(features)[:, 0] - scores).max() < 0.1
    several = np.stack([features[:, 0] > 3, np.ones(400), np.zeros(400)], 1).astype(int)
    told = frozen.solve("multilabel", features, several, 3, 1.0, None, False).scores(features) > 0
    assert (told == several).mean() > 0.95
    two = frozen.solve("classify", features, (features[:, 2] > 3).astype(int), 2, 1.0, None, False).scores(features)
    assert ((two[:, 1] > two[:, 0]) == (features[:, 2] > 3)).mean() > 0.95


def test_the_penalty_is_chosen_on_held_out_rows() -> None:
    draw = np.random.default_rng(0)
    features, held = draw.normal(size=(60, 40)), draw.normal(size=(200, 40))
    head, tried = frozen.search("regress", features, features[:, 0] + draw.normal(size=60), 1, (held, held[:, 0]))
    assert len(tried) == 3 and head.penalty == max(tried, key=lambda one: one[1])[0]


def test_a_frozen_run_learns_and_answers_like_any_other(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "films.csv", rows=400)
    run = tokmix.train(table, tmp_path / "run", start=str(made), verbose=True, **{**PLAIN, "train.freeze": "yes", "train.baseline": True})
    said = capsys.readouterr().out
    assert "the encoder stays frozen, as asked" in said and "features of" in said and "the model answers by" in said
    assert run.figures["accuracy"] > 0.6 and run.cost["steps"] == 0 and run.cost["examples"] > 200
    assert run.cost["flops_training"] == run.cost["flops_forward"]
    before, after = model_folder.load(made).model.state_dict(), model_folder.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("head."))
    assert run.model.predict("a fine film") in ("good", "bad") and run.model.evaluate(table)["accuracy"] > 0.6
    assert run.model.explain("a fine film").maps


def test_scores_of_any_scale_and_several_labels(made: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = ["text,score", *(f"{' '.join(draw.choices(REST.split(), k=5))} {'fine ' * n},{1000.5 + 5000 * n}" for n in [0, 1, 2, 3] * 60)]
    (tmp_path / "prices.csv").write_text("\n".join(lines) + "\n")
    run = tokmix.train(tmp_path / "prices.csv", tmp_path / "prices", start=str(made), **{**PLAIN, "train.freeze": "yes"})
    assert run.task == "regress" and run.figures["pearson"] > 0.8 and run.model.predict("the fine fine fine") > 4000
    rows = [f"{' '.join(draw.choices(REST.split(), k=5))} {a} {b},{a}|{b}" for a in GOOD.split() for b in BAD.split() for _ in range(12)]
    (tmp_path / "labels.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    given = {**PLAIN, "train.freeze": "yes", "prepare.label_separator": "|"}
    several = tokmix.train(tmp_path / "labels.csv", tmp_path / "labels", start=str(made), **given)
    assert several.task == "multilabel" and several.figures["micro_f1"] > 0.4


def test_the_time_allowed_decides_and_a_resumed_run_does_not_decide_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "films.csv", rows=400)
    tokmix.train(table, tmp_path / "little", start=str(made), minutes=0.001, verbose=True, **PLAIN)
    assert "the encoder stays frozen: 2 epochs of fine-tuning would take" in capsys.readouterr().out
    assert '"frozen": true' in (tmp_path / "little" / "run.json").read_text()

    class FineTuned(Exception):
        pass

    def go(*given: object) -> None:
        raise FineTuned

    monkeypatch.setattr("tokmix.training.train.go", go)
    for name, more in (
        ("much", {"train.minutes": 50.0}),
        ("asked", {"train.minutes": 0.001, "train.freeze": "no"}),
        ("said", {"train.epochs": 1}),
    ):
        with pytest.raises(FineTuned):
            tokmix.train(table, tmp_path / name, start=str(made), verbose=True, **{**PLAIN, **more})
        assert ("the encoder is fine-tuned: 2 epochs" in capsys.readouterr().out) == (name == "much")
    monkeypatch.setattr("tokmix.training.engine.Engine.estimate_pace", lambda self: 1e9)  # slow by now, and yet not asked again
    with pytest.raises(FineTuned):
        tokmix.train(table, tmp_path / "much", start=str(made), resume=True, **{**PLAIN, "train.minutes": 50.0})


@pytest.mark.parametrize(
    ("data", "more", "told"),
    [
        ("pairs", {"train.freeze": "yes"}, "the two texts of a pair"),
        ("films", {"train.freeze": "yes", "start": None}, "name one with --from"),
    ],
)
def test_where_it_cannot_be_it_is_refused(made: Path, tmp_path: Path, data: str, more: dict[str, object], told: str) -> None:
    path = write_scores(tmp_path / "pairs.tsv") if data == "pairs" else write_table(tmp_path / "films.csv")
    with pytest.raises(ValueError, match=told):
        tokmix.train(path, tmp_path / "run", **{"start": str(made), **PLAIN, **more})
    assert not (tmp_path / "run").exists()
