"""The claims on one screen: every row has a verdict behind it, intervals are Student's, and a wheel shows them without a checkout."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from scipy import stats

from reproduce import claims, headline, page, readme
from reproduce import item as catalogue
from tokmix.cli.main import main
from tokmix.runs.files import write_json
from tokmix.study import checkout
from tokmix.study.statistics import interval

ROOT = Path(__file__).parents[2]


def runs(*scores: float) -> list[claims.Run]:
    return [{"seed": seed, "score": score} for seed, score in enumerate(scores)]


def test_an_interval_is_that_of_scipy() -> None:
    values = [0.3, 0.1, 0.25, 0.4]
    expected = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
    assert interval(values) == pytest.approx(expected)
    assert interval([0.3]) is None and interval([0.3, 0.3]) is None


def test_a_verdict_has_the_interval_of_its_difference_and_is_recorded() -> None:
    with claims.recorded() as found:
        (verdict,) = claims.judge([claims.Claim("a before b", runs(0.9, 0.8, 0.95), runs(0.5, 0.5, 0.6))])
    assert found == [verdict] and verdict.interval == pytest.approx(interval([0.4, 0.3, 0.35]))
    assert page.effect(verdict, 100) == "+35.0 [+22.6, +47.4]"


@pytest.mark.parametrize(("bounds", "word"), [((0.1, 0.3), "holds"), ((-0.3, -0.1), "does not hold"), ((-0.1, 0.3), "unclear")])
def test_a_verdict_from_an_interval(bounds: tuple[float, float], word: str) -> None:
    assert claims.by_interval("x", sum(bounds) / 2, bounds).word == word


def test_counts_of_verdicts_are_english() -> None:
    assert page.tally({"holds": 17, "does not hold": 3, "unclear": 1}) == "17 hold, 3 do not, 1 is unclear"
    assert page.tally({"holds": 1, "does not hold": 1, "not run": 2}) == "1 holds, 1 does not, 2 are not run"


def test_every_row_of_the_headline_has_a_verdict_of_its_item() -> None:
    found = headline.rows(ROOT / "reproduce")
    assert len(found) == len(headline.CHOICES) and all(row.verdict != page.NOT_RUN and row.effect and row.caveat for row in found)


def test_a_verdict_of_the_second_edition_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """As soon as it has runs; the others stay."""
    scores = {"hypermixing-4096": (0.90, 0.91, 0.90, 0.91, 0.90), "attention-4096": (0.80, 0.80, 0.81, 0.80, 0.81)}
    outcome = lambda of: {"runs": [{**run, "state": "finished", "lr": 1e-3} for run in runs(*of)]}
    records = [{"key": key, "kind": "rows", "spec": {}, "outcome": outcome(of)} for key, of in scores.items()]
    content = {"format": "tokmix-papers", "version": 1, "paper": "fair", "item": "imdb", "quick": False, "calls": [], "jobs": records}
    before = headline.rows(tmp_path)
    write_json(tmp_path / "fair" / "results" / "imdb.json", content)
    after = headline.rows(tmp_path)
    changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert len(changed) == 1 and len(after) == len(headline.CHOICES)
    assert changed[0][0].verdict == page.NOT_RUN and changed[0][1].verdict == "holds" and changed[0][1].seeds == "5"
    assert changed[0][1].effect.startswith("+10.0 [") and "second edition" in changed[0][1].caveat


def test_every_verdict_of_the_second_edition_is_one_of_its_claims() -> None:
    for one in [choice.again for choice in headline.CHOICES if choice.again is not None]:
        content = {"quick": False, "jobs": [], "calls": [], "paper": "fair", "item": one.item}
        with claims.recorded() as verdicts:
            catalogue.item("fair", one.item).tables(content)
        assert sum(fnmatchcase(verdict.says, one.says) for verdict in verdicts) == 1, one.says


def test_the_summary_in_the_wheel_is_that_of_the_results_files() -> None:
    assert (ROOT / readme.SHIPPED).read_text(encoding="utf-8") == readme.shipped_summary(ROOT / "reproduce")


def test_without_a_checkout_the_shipped_verdicts_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checkout, "found", lambda: None)
    assert main(["papers"]) == 0
    told = capsys.readouterr().out
    for row in json.loads((ROOT / readme.SHIPPED).read_text(encoding="utf-8"))["rows"]:
        assert row["claim"] in told and row["effect"] in told
    assert "git" not in told and "clone the repository" in told
    assert main(["papers", "hypermixer"]) == 1
    assert "clone the repository" in capsys.readouterr().err
