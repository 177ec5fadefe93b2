"""Figure 5: batches in their order, maps of models whose answer is known, tables with cells missing, and a small run of it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reproduce import shapes
from reproduce.hypermixer import figure5
from reproduce.job import Context
from reproduce.toy import model as toy
from reproduce.toy.data import split
from tests.reproduce.test_toy import Levelling


@pytest.fixture(scope="module")
def data() -> tuple[shapes.Shapes, shapes.Shapes]:
    return split(25, 8, seed=1)


# --- training ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "hypermixing"])
def test_fused_convolutions_side_by_side_train_like_toy_train(name: str, data: Any) -> None:
    """The models that a GPU trains, step by step on a CPU."""
    train_set, seeds, recipe = data[0], (3, 4), {"epochs": 2, "batch": 10}
    plain, fused = ([toy.build(toy.ITEMS[name], train_set, seed) for seed in seeds] for _ in range(2))
    before = [parameter.detach().clone() for model in plain for parameter in model.parameters()]
    for model, seed in zip(plain, seeds, strict=True):
        toy.train(model, train_set, seed=seed, **recipe)
    toy.train_all(fused, [train_set] * 2, seeds, fused=True, **recipe)
    after = [[parameter for model in models for parameter in model.parameters()] for models in (plain, fused)]
    for old, one, other in zip(before, *after, strict=True):
        assert not torch.equal(old, one)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_batches_hold_every_row_once_an_epoch_in_the_order_of_the_seed() -> None:
    found = [index for _, index in toy.in_order(25, 10, 3, [0, 1, 0])]
    assert [tuple(index.shape) for index in found] == [(3, 10), (3, 10), (3, 5)] * 3
    for epoch in range(3):
        rows = torch.cat(found[3 * epoch : 3 * epoch + 3], 1)
        assert torch.equal(rows[0], rows[2]) and not torch.equal(rows[0], rows[1])
        assert torch.equal(rows.sort(1).values, torch.arange(25).expand(3, -1))
    alone = [index for _, index in toy.in_order(25, 10, 3, [1])]
    assert all(torch.equal(one[0], three[1]) for one, three in zip(alone, found, strict=True))


def test_convolutions_with_mirrored_taps_are_refused(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy.build("none", data[0], 0)
    shapes.check_quick(model, data[0])
    right = toy.convolve
    monkeypatch.setattr(toy, "convolve", lambda x, weight, bias, relu: right(x, weight.flip(0), bias, relu))
    with pytest.raises(RuntimeError, match="TOKMIX_IMPL=reference"):
        shapes.check_quick(model, data[0])


# --- maps ----------------------------------------------------------------------------------------------------------------------


def test_derivatives_are_those_of_the_whole_model(data: Any) -> None:
    model = toy.build(toy.ITEMS["hypermixing"], data[0], 0).eval()
    found = shapes.jacobians(model, data[1], "model")
    assert found is not None and found.shape == (8, 100, 100)
    for row in (0, 7):
        exact = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], data[1].inputs[row])
        torch.testing.assert_close(found[row], exact, rtol=1e-3, atol=1e-6)
    assert shapes.jacobians(toy.build("none", data[0], 0), data[1], "mixer") is None


class Alone(Levelling):
    """One sequence at a time, as the maps ask: every copy in a batch is the same one."""

    def forward(self, x: Tensor) -> Tensor:
        self.data = self.all.take(torch.tensor([int((self.all.inputs - x[0]).abs().sum(1).argmin())]))
        return super().forward(x)


def test_pairing_of_a_model_that_levels_and_of_a_map_that_is_blind(data: Any) -> None:
    few = data[1].take(slice(4))
    model = Alone(few, 0.0)
    model.all = few
    maps = shapes._derivatives(model, few.inputs, rows=100)
    found = shapes.pairing(maps, few)
    assert found["hits"] == 1.0 and found["partner"] > 0.02 and found["stranger"] == pytest.approx(0, abs=1e-6) and found["sequences"] == 4
    blind = shapes.pairing(torch.ones(4, 100, 100), few)
    assert blind["partner"] == blind["stranger"] == 1.0
    crossed = shapes.pairing(torch.flip(maps, [0]), few)  # the maps of other sequences
    assert crossed["hits"] < 0.8


def test_a_kept_map_loses_less_than_a_shade() -> None:
    weights = torch.randn(100, 100, generator=torch.Generator().manual_seed(0))
    kept = json.loads(json.dumps(shapes.squeezed(weights)))
    assert len(kept["cells"]) < 14_000
    assert (shapes.unsqueezed(kept) - weights).abs().max() <= 0.51 * kept["top"] / 127
    assert shapes.unsqueezed(shapes.squeezed(torch.zeros(3, 3))).tolist() == torch.zeros(3, 3).tolist()


# --- the item ------------------------------------------------------------------------------------------------------------------


def test_jobs_are_the_papers_setting() -> None:
    found = {job.key: job for job in figure5.jobs(False, {})}
    assert list(found) == ["n100", "n1000", "n10000", "n1000-variants", "n100000", "n100000-others"]
    for job in found.values():
        spec = json.loads(json.dumps(job.spec))
        epochs = 50 if spec["n"] == 100_000 else 250  # the paper's are 250; the table says so
        assert (spec["epochs"], spec["batch"], spec["lr"], spec["test"]) == (epochs, 100, 1e-3, 1000)
        for member in spec["members"]:
            toy.ShapesModel(member["item"])  # it exists
    seeds = {key: [m["seed"] for m in job.spec["members"] if m["model"] == "hypermixing"] for key, job in found.items()}
    assert seeds == {
        "n100": [0, 1, 2, 3, 4],
        "n1000": [0, 1, 2, 3, 4],
        "n10000": [0, 1, 2],
        "n1000-variants": [],
        "n100000": [0],
        "n100000-others": [],
    }
    assert {m["model"] for key in ("n100000", "n100000-others") for m in found[key].spec["members"]} == set(toy.ITEMS)
    assert sorted(found.values(), key=lambda job: -job.weight)[-2:] == [
        found["n100000"],
        found["n100000-others"],
    ]  # last where time is short
    assert [(m["model"], m["seed"]) for m in found["n10000"].spec["members"] if m.get("map")] == [("attention", 0), ("hypermixing", 0)]


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """--quick of the item with a little less of it."""
    (job,) = figure5.jobs(True, {})
    spec = job.spec | {"epochs": 3, "n": 60}
    said: list[str] = []
    outcome = shapes.run(spec, Context(torch.device("cpu"), None, said.append))
    assert said
    return json.loads(json.dumps(outcome))


def test_a_small_run_from_training_to_maps(quick: dict[str, Any]) -> None:
    assert [(run["model"], run["seed"], run["state"]) for run in quick["runs"]] == [(name, 0, "finished") for name in toy.ITEMS]
    for run in quick["runs"]:
        assert len(run["late"]) == 2 and run["late"][-1] == run["score"] > figure5.FLOOR
        assert set(run["maps"]) == ({"model"} if run["model"] == "none" else {"model", "mixer"})
    assert quick["steps"] == 6 and quick["tokens"] == 3 * 60 * 100 and quick["products"] == "float32"
    (drawn,) = quick["drawn"]
    assert list(drawn["models"]) == ["attention", "hypermixing"] and len(drawn["input"].split()) == 100
    alone = {"epochs": 3, "n": 60, "measured": 0, "drawn": 0, "members": [{"model": "none", "item": "none", "seed": 0}]}
    again = shapes.run(figure5.jobs(True, {})[0].spec | alone, Context(torch.device("cpu"), None, lambda text: None))
    assert again["runs"][0]["score"] == quick["runs"][0]["score"] and "maps" not in again["runs"][0] and not again["drawn"]


def test_a_run_that_diverges_has_no_score() -> None:
    spec = figure5.jobs(True, {})[0].spec | {"epochs": 2, "n": 60, "lr": 1e30, "members": [{"model": "none", "item": "none", "seed": 0}]}
    (run,) = shapes.run(spec, Context(torch.device("cpu"), None, lambda text: None))["runs"]
    assert run["state"] == "diverged" and run["score"] is None


def _run(model: str, seed: int, score: float | None, maps: dict[str, Any] | None) -> dict[str, Any]:
    if score is None:
        return {"model": model, "seed": seed, "state": "diverged", "score": None}
    moved = {"partner": 0.4, "stranger": 0.1}
    found = {"model": model, "seed": seed, "state": "finished", "score": score, "late": [score, 1.0, 3.0], "response": moved}
    return found if maps is None else found | {"maps": maps}


def content(quick: dict[str, Any], **scores: dict[str, list[float | None]]) -> dict[str, Any]:
    """A results file: n1000={"attention": [..]} gives those seeds their scores; the maps are those of the small run."""
    jobs = []
    for job in figure5.jobs(False, {}):
        given = scores.get(job.key.replace("-", "_"))
        outcome = None
        if given is not None:
            maps = {run["model"]: run["maps"] for run in quick["runs"]}
            runs = [_run(model, seed, score, maps.get(model)) for model, values in given.items() for seed, score in enumerate(values)]
            outcome = {"runs": runs, "products": "TF32", "drawn": quick["drawn"] if job.key == "n10000" else []}
        jobs.append({"key": job.key, "kind": "shapes", "spec": job.spec, "outcome": outcome})
    return {"format": "tokmix-papers", "version": 1, "paper": "hypermixer", "item": "figure5", "quick": False, "jobs": jobs}


def cells(text: str, *starts: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith("| " + " | ".join(starts) + " |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_show_what_is_there_and_say_what_is_not(quick: dict[str, Any]) -> None:
    hyper, attention = [8.0, 9.0, 7.0, 8.5, 7.5], [23.0, 25.0, 24.0, 26.0, 22.0]
    found = content(
        quick, n1000={"hypermixing": hyper, "attention": attention, "none": [260.0, 270.0, None, 265.0, 261.0]},
        n10000={"hypermixing": [1.5, 2.0, 1.0]}, n1000_variants={"no-norm": [9.0, 11.0]}, n100000={"attention": [0.98]},
    )  # fmt: skip
    text = figure5.tables(found)
    assert cells(text, "HyperMixer")[1:] == ["not run / 163.2", "8.00 (0.79) / 8.176", "1.50 (0.50) / 1.488", "not run / 0.978"]
    assert cells(text, "self-attention")[4] == "0.98 / 0.991" and cells(text, "MLPMixer")[2] == "not run / 326.8"
    assert "4 of 5" in cells(text, "none")[2]
    assert f"- HyperMixer: {100 * (statistics.fmean(hyper) / 8.176 - 1):+.0f} %" in text and "- MLPMixer: not run" in text
    assert cells(text, "1,000", "HyperMixer")[2:] == ["8.00, 9.00, 7.00, 8.50, 7.50", "3.00 (0.00)"]
    assert cells(text, "1,000", "none")[2] == "260.0, 270.0, diverged, 265.0, 261.0"
    assert cells(text, "n = 1,000: HyperMixer errs less than self-attention")[1] == "**holds**"
    assert cells(text, "n = 100: HyperMixer errs less than self-attention")[1] == "**not run**"
    assert cells(text, "HyperMixer without LayerNorm")[1:] == ["10.00 (1.41)", "9.00, 11.00"]
    pairs = next(run["maps"] for run in quick["runs"] if run["model"] == "hypermixing")
    mapped = [line for line in text.splitlines() if line.startswith("| HyperMixer |")][-1]
    assert f"= {pairs['model']['partner'] / pairs['model']['stranger']:.1f} : 1 | {100 * pairs['model']['hits']:.0f} %" in mapped
    assert mapped.endswith("| 0.40 : 0.10 |") and text.splitlines()[-1].startswith("Products while training: TF32")
    small = {"quick": True, "jobs": [{"key": "quick", "outcome": quick}]}
    assert cells(figure5.tables(small), "HyperMixer")[1] == f"{quick['runs'][-1]['score']:.1f}" and "n = 100" not in figure5.tables(small)
    empty = figure5.tables(content(quick))
    assert "**holds**" not in empty and cells(empty, "HyperMixer")[2] == "not run / 8.176"


def test_figures_are_drawn_from_the_file_and_the_same_each_time(quick: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = content(quick, n1000={"hypermixing": [8.0, 9.0]}, n10000={"hypermixing": [1.5]})
    made = [figure5.figures(found, tmp_path / name) for name in ("one", "two")]
    assert [path.name for path in made[0]] == ["figure5.svg", "figure5-maps-1.svg", "figure5-mixers.svg"]
    assert all(one.read_bytes() == two.read_bytes() and b"<svg" in one.read_bytes() for one, two in zip(*made, strict=True))
    assert figure5.figures(content(quick), tmp_path / "none") == []
