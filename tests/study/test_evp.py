"""Expected validation performance against brute force: every draw, every subset, ties included."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmix.study.expected_performance import Curve, with_replacement, without_replacement

TIED = [[0.5], [0.5, 0.5, 0.5], [0.25, 0.75, 0.75, 0.25], [0.1, 0.2, 0.2, 0.9, 0.3], [-1.0, 0.0, 0.0, -1.0, 2.5]]


def brute(outcomes: list[tuple[float, ...]], best) -> tuple[float, float]:
    """Mean and deviation of the best of each outcome, all equally likely, in exact fractions."""
    values = [Fraction(best(outcome)) for outcome in outcomes]
    mean = sum(values) / len(values)
    return float(mean), math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def every_draw(scores: list[float], n: int) -> list[tuple[float, ...]]:
    return list(itertools.product(scores, repeat=n))


def every_subset(scores: list[float], n: int) -> list[tuple[float, ...]]:
    return list(itertools.combinations(scores, n))


def check(curve: Curve, scores: list[float], outcomes, best) -> None:
    assert len(curve.mean) == len(curve.deviation) == len(scores)
    for n in range(1, len(scores) + 1):
        mean, deviation = brute(outcomes(scores, n), best)
        assert curve.mean[n - 1] == pytest.approx(mean, rel=1e-13, abs=1e-15)
        assert curve.deviation[n - 1] == pytest.approx(deviation, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("scores", TIED, ids=str)
def test_brute_force_over_all_draws_and_all_subsets(scores: list[float], higher: bool) -> None:
    best = max if higher else min
    check(with_replacement(scores, higher), scores, every_draw, best)
    check(without_replacement(scores, higher), scores, every_subset, best)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]) | st.floats(-1e3, 1e3).map(lambda x: round(x, 9)), min_size=1, max_size=5),
    st.booleans(),
)
def test_brute_force_on_any_scores(scores: list[float], higher: bool) -> None:
    best, scale = (max if higher else min), max(map(abs, scores))
    for curve, outcomes in ((with_replacement(scores, higher), every_draw), (without_replacement(scores, higher), every_subset)):
        for n in range(1, len(scores) + 1):
            mean, deviation = brute(outcomes(scores, n), best)
            assert curve.mean[n - 1] == pytest.approx(mean, rel=1e-12, abs=1e-13 * scale)
            assert curve.deviation[n - 1] == pytest.approx(deviation, rel=1e-6, abs=1e-7 * scale)


def test_the_ends_of_the_curves() -> None:
    scores = [0.3, 0.9, 0.4, 0.9, 0.1]
    both = with_replacement(scores), without_replacement(scores)
    for curve in both:
        assert curve.mean[0] == pytest.approx(sum(scores) / 5)
        assert curve.mean == sorted(curve.mean)
    assert (both[1].mean[-1], both[1].deviation[-1]) == (0.9, 0.0), "all five of five trials: the best is certain"
    assert both[0].mean[-1] < 0.9
    assert all(a <= b + 1e-15 for a, b in zip(both[0].mean, both[1].mean, strict=True))


def test_many_trials_neither_overflow_nor_lose_the_chances() -> None:
    scores = [i / 400 for i in range(1, 401)]
    for curve, wanted in ((with_replacement(scores), None), (without_replacement(scores), (200 * 401 / 201) / 400)):
        assert all(map(math.isfinite, curve.mean + curve.deviation))
        assert curve.mean == sorted(curve.mean)
        if wanted is not None:  # the largest of n of the numbers 1 .. N is n (N + 1) / (n + 1) on average
            assert curve.mean[199] == pytest.approx(wanted, rel=1e-13)


def test_equal_scores_have_no_spread() -> None:
    for curve in (with_replacement([0.1] * 7), without_replacement([0.1] * 7)):
        assert curve.mean == [0.1] * 7
        assert max(curve.deviation) < 1e-15


def test_nothing_comes_of_nothing_and_a_nan_is_refused() -> None:
    assert with_replacement([]) == without_replacement([]) == Curve([], [])
    with pytest.raises(ValueError, match="score a diverged trial at chance"):
        with_replacement([0.5, math.nan])
