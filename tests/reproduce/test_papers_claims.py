"""The claims of a paper: what seeds and examples say of them, and how they and their numbers stand in cells, tables and curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reproduce import claims, draw, page
from reproduce.claims import Claim, judge
from tests import needs
from tests.papers_made_up import runs
from tokmix.study.statistics import Bootstrap, holm, paired_t


@pytest.mark.parametrize(
    ("better", "worse", "word"),
    [
        (runs(0.8), runs(0.7), "holds"),
        (runs(0.7), runs(0.8), "does not hold"),
        (runs(0.8, spread=0.3), runs(0.79, spread=0.3), "unclear"),
        (runs(0.8, seeds=1), runs(0.7, seeds=1), "unclear"),
        (runs(0.8), [], "not run"),
        (runs(0.8), [{"seed": 0, "state": "failed", "score": None}], "not run"),
    ],
)
def test_a_verdict_is_what_the_seeds_say(better: list[dict], worse: list[dict], word: str) -> None:
    (found,) = judge([Claim("a before b", better, worse)])
    assert found.word == word


def test_lower_is_better_and_a_margin_moves_the_line() -> None:
    loss_a, loss_b = runs(2.30), runs(2.34)
    assert judge([Claim("a has the lower loss", loss_a, loss_b, higher=False)])[0].word == "holds"
    assert judge([Claim("b has the lower loss", loss_b, loss_a, higher=False)])[0].word == "does not hold"
    close = judge([Claim("b comes within 0.1 of a", loss_b, loss_a, higher=False, margin=0.1)])[0]
    assert close.word == "holds" and close.difference == pytest.approx(-0.04, abs=0.02)
    assert judge([Claim("b leads by 0.1", loss_b, loss_a, higher=False, margin=-0.1)])[0].word == "does not hold"


def test_the_claims_of_an_item_are_corrected_together() -> None:
    pair = (runs(0.75, spread=0.02), runs(0.72, spread=0.02))
    alone = judge([Claim("one", *pair)])[0]
    many = judge([Claim(f"{i}", *pair) for i in range(20)])
    plain = paired_t(*([run["score"] for run in side] for side in pair))
    assert alone.t == plain and many[0].t == holm([plain] * 20)[0] and alone.t is not None and many[0].t > alone.t


def test_only_seeds_that_both_have_are_paired() -> None:
    found = judge([Claim("a before b", runs(0.8, seeds=5), runs(0.7, seeds=3))])[0]
    assert found.seeds == 3


def test_the_bootstrap_over_examples_is_that_of_many_resamples() -> None:
    chance = np.random.default_rng(0)
    right = chance.random((2, 3, 300)) < np.array([0.8, 0.74])[:, None, None]  # [systems, seeds, examples]
    sums = np.stack([right.astype(float), np.ones(right.shape)], -1)
    many = Bootstrap(sums, lambda part: part[..., 0] / part[..., 1], draws=20_000)
    exact = claims.over_examples(list(zip(*right, strict=True)))
    assert exact == pytest.approx(many.over_examples(0, 1, [0, 1, 2]), abs=0.015)
    assert claims.over_examples([(right[0, 0], right[0, 0])]) == pytest.approx(1.0)
    assert claims.over_examples([(right[0, 0][:0], right[0, 0][:0])]) is None


def test_examples_can_undo_what_seeds_say() -> None:
    """Seeds that agree on a test set of 40 do not make it larger."""
    small = judge([Claim("a", runs(0.80, examples=40, spread=0), runs(0.775, examples=40, spread=1e-6))])[0]
    assert small.t is not None and small.t < 0.05 and small.examples is not None and small.examples > 0.05 and small.word == "unclear"
    large = judge([Claim("a", runs(0.80, examples=4000, spread=0), runs(0.775, examples=4000, spread=1e-6))])[0]
    assert large.word == "holds"


def test_bits_survive_the_file() -> None:
    for n in (1, 8, 13, 872):
        right = np.random.default_rng(n).random(n) < 0.5
        assert (claims.unpack(json.loads(json.dumps(claims.pack(right))), n) == right).all()
    with pytest.raises(ValueError, match="does not fit 20 examples"):
        claims.unpack(claims.pack(np.ones(8, bool)), 20)


# --- cells, tables, curves ---------------------------------------------------------------------------------------------------


def test_cells() -> None:
    assert page.cell([{"seed": i, "score": score} for i, score in enumerate((0.820, 0.822, 0.826))], scale=100) == "82.3 (0.3)"
    assert page.cell([{"seed": 0, "score": 0.5}], digits=2) == "0.50" and page.cell([]) == "not run"
    lost = [{"seed": 0, "score": 0.5, "state": "finished"}, {"seed": 1, "score": None, "state": "failed"}]
    assert page.cell(lost) == "0.5, 1 of 2" and page.cell(lost[1:]) == "failed"
    assert page.cell([{"seed": 0, "score": 0.5, "state": "diverged"}, *lost[:1]]).endswith("1 diverged")
    assert page.table(["a", "b"], [["x|y", None]]) == "| a | b |\n| --- | --- |\n| x\\|y | not run |"
    shown = page.claims_table([Claim("a before b", runs(0.8), runs(0.7)), Claim("c", [], [])], scale=100)
    assert shown.splitlines()[2].startswith("| a before b | **holds** | +") and "| c | **not run** |" in shown and "examples" not in shown
    assert page.count_verdicts(shown) == {"holds": 1, "not run": 1}


def test_curves_are_drawn_with_the_same_bytes_twice(tmp_path: Path) -> None:
    needs.package("matplotlib")
    curves = [draw.over_seeds("ours", {5: [70.0, 72.0], 10: [], 100: [80.0, 83.0]}), draw.Curve("ours", [5, 100], [71, 79], dashed=True)]
    assert list(curves[0].x) == [5, 100] and (curves[0].y[0], curves[0].low[0], curves[0].high[0]) == (71, 70, 72)
    shown = [draw.Panel(curves, "share", "accuracy", "SNLI", log_x=True, log_y=True, ticks=[5, 100])]
    shown.append(draw.Dots(["SST-2", "SNLI"], {"ours": [1.0, None]}, "accuracy", {"ours": [0.1, 0.0]}))  # type: ignore[arg-type]
    first, second = (draw.panels(tmp_path / name, shown, "A title").read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and b"<svg" in first
