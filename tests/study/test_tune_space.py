"""The space: what is drawn, and what is said about a space that does not work."""

from __future__ import annotations

import json
import math

import pytest

from tokmix.study.tune.space import PAPER, Space, apply
from tokmix.training.settings import Settings

WIDE = {
    **PAPER,
    "model.dim": {"int": [16, 64, 16]},
    "model.layout": {"choice": ["pre", "rezero"]},
    "train.epochs": {"int": [1, 3]},
    "train.average": {"choice": [0, 0.9, 0.99]},
}


def test_a_draw_is_a_function_of_seed_trial_and_name() -> None:
    space = Space.of(WIDE)
    assert space.draw(3, 7) == Space.of(dict(reversed(WIDE.items()))).draw(3, 7)
    drawn = {json.dumps(space.draw(seed, trial)) for seed in range(10) for trial in range(10)}
    assert len(drawn) == 100
    few = Space.of(PAPER).draw(3, 7)
    assert few == {name: value for name, value in space.draw(3, 7).items() if name in few}, "a setting more leaves the others as they were"


def test_draws_fill_their_ranges_evenly() -> None:
    draws = [Space.of(WIDE).draw(0, trial) for trial in range(3000)]
    decades = [math.log10(draw["train.lr"]) for draw in draws]
    for values, low, high in ((decades, -8, -1), ([draw["model.dropout"] for draw in draws], 0, 0.5)):
        assert low <= min(values) and max(values) <= high
        tenths = [0] * 10
        for value in values:
            tenths[min(int((value - low) / (high - low) * 10), 9)] += 1
        assert all(220 < count < 380 for count in tenths), tenths  # 300 each, give or take five deviations
    for name, values in (("model.dim", {16, 32, 48, 64}), ("train.epochs", {1, 2, 3}), ("model.layout", {"pre", "rezero"})):
        found = [draw[name] for draw in draws]
        assert set(found) == values
        assert all(abs(found.count(value) - 3000 / len(values)) < 150 for value in values)


def test_parameters_go_into_settings() -> None:
    settings = apply(Settings.of(None, {"train.lr": 1.0, "model.dim": 8}), {"train.lr": 0.5, "model.layout": "rezero"})
    assert (settings.train.lr, settings.model.layout, settings.model.dim) == (0.5, "rezero", 8)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "the space is empty"),
        ({"train.lrr": {"uniform": [0, 1]}}, "unknown setting 'train.lrr', did you mean 'train.lr'?"),
        ({"train": {"lrr": {"uniform": [0, 1]}}}, "did you mean 'train.lr'?"),
        ({"prepare.vocab": {"int": [1, 9]}}, "the data is prepared once"),
        ({"train.task": {"choice": ["lm"]}}, "cannot be searched: it changes what trials are compared by"),
        ({"train.lr": {"unifrom": [0, 1]}}, "unknown range of train.lr in the space: 'unifrom'.*did you mean 'uniform'?"),
        ({"train.lr": [0, 1]}, "train.lr should be one of uniform, loguniform, int, choice"),
        ({"train.lr": {"uniform": [1]}}, "uniform takes two numbers"),
        ({"train.lr": {"uniform": "0-1"}}, "takes a list"),
        ({"train.lr": {"uniform": [1, 0]}}, "the lower end should be below"),
        ({"train.lr": {"uniform": [0.1, float("inf")]}}, "both ends should be finite"),
        ({"train.lr": {"uniform": [1, 2]}, "train": {"lr": {"uniform": [3, 4]}}}, "train.lr stands there twice"),
        ({"train.epochs": {"int": [1, 5]}, "train.steps": {"int": [1, 5]}}, "takes its place"),
        ({"train.lr": {"loguniform": [0, 1]}}, "both ends should be above 0"),
        ({"train.epochs": {"int": [1, 2.5]}}, "int takes two whole numbers"),
        ({"train.epochs": {"int": [1, 6, 2]}}, "the step 2 does not lead from 1 to 6"),
        ({"model.layout": {"choice": ["pre", "pre"]}}, "twice"),
        ({"model.layout": {"choice": ["pre", ["post"]]}}, "a choice is a number, a text"),
        ({"model.layout": {"choice": ["pre", "rezro"]}}, "layout='rezro' is unknown.*did you mean 'rezero'?"),
        ({"model.dim": {"uniform": [16, 64]}}, "^space: model.dim=16.0 should be of type int"),
        ({"train.warmup": {"uniform": [0, 2]}}, "train.warmup=2.0 is outside 0 to 0.9"),
    ],
    ids=str,
)
def test_a_space_that_does_not_work_is_told_in_one_line(space: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words) as told:
        Space.of(space).check(Settings())
    assert "\n" not in str(told.value)


def test_a_space_is_read_from_json_and_yaml_nested_or_not(tmp_path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"train.lr": {"loguniform": [1e-4, 1e-2]}}))
    (tmp_path / "b.yaml").write_text("train:\n  lr: {loguniform: [1e-4, 0.01]}\n")
    for text in ("[]", "3"):
        (tmp_path / "list.json").write_text(text)
        with pytest.raises(ValueError, match=r"list.json should hold a range for each setting, such as \{\"train.lr\": "):
            Space.read(tmp_path / "list.json")
    assert Space.read(tmp_path / "a.json") == Space.read(tmp_path / "b.yaml") == Space.of({"train.lr": {"loguniform": [1e-4, 1e-2]}})
    assert Space.read("paper").record() == PAPER and Space.read(None) == Space.read("default")
    with pytest.raises(ValueError, match="no file"):
        Space.read(tmp_path / "c.json")
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        Space.read(tmp_path / "d.json")
