"""The tests of significance against brute force, scipy and values worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest

pytest.importorskip("numpy")

import numpy as np

from tokmix.study import statistics
from tokmix.study.statistics import Bootstrap, holm, p_value, paired_t, student_tail


def ratio(sums):
    return sums[..., 0] / sums[..., 1]


def pearson(sums):
    """0 where one side does not vary: five times the same example."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return np.where(spread > 1e-9, (n * xy - x * y) / np.sqrt(np.maximum(spread, 1e-9)), 0.0)


def hits(*systems):
    """[systems, seeds, examples] of right or not -> sums"""
    right = np.array(systems, dtype=float)
    return np.stack([right, np.ones_like(right)], -1)


def test_the_paired_t_test_is_that_of_the_textbook():
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3); with two degrees of freedom the tail is 1 - t / sqrt(2 + t^2).
    t = 2 * math.sqrt(3)
    assert paired_t([2, 4, 6], [1, 2, 3]) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)
    assert paired_t([1, 2, 3], [2, 4, 6]) == paired_t([2, 4, 6], [1, 2, 3])
    # With one degree of freedom it is Cauchy's distribution.
    assert paired_t([3.0, 1.0], [0.0, 0.0]) == pytest.approx(1 - 2 / math.pi * math.atan(2.0), rel=1e-12)


def test_the_paired_t_test_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(1)
    for n in (2, 3, 5, 10, 50, 400):
        for shift in (0.0, 0.3, 4.0, 50.0):
            a, b = chance.normal(size=n) + shift, chance.normal(size=n)
            assert paired_t(a.tolist(), b.tolist()) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    for freedom in (1, 2, 7, 100, 3000):
        for t in (0.0, 1e-3, 0.5, 1.0, 3.0, 40.0, 1e5):
            assert student_tail(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


def test_the_paired_t_test_at_its_edges():
    assert paired_t([0.5], [0.4]) is None and paired_t([], []) is None
    assert paired_t([0.5, 0.6], [0.5, 0.6]) == 1.0
    assert paired_t([1.0, 2.0], [0.5, 1.5]) is None
    assert paired_t([0.3, 0.7, 0.9], [0.2, 0.6, 0.8]) is None  # equal but for rounding
    assert paired_t([0.0, 0.0], [0.0, 0.0]) == 1.0
    with pytest.raises(ValueError, match="3 scores cannot be paired with 2"):
        paired_t([1, 2, 3], [1, 2])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9, 0.6]) == pytest.approx([1.0, 1.0, 1.0])
    assert holm([0.02, None, 0.03]) == [pytest.approx(0.04), None, pytest.approx(0.04)]
    assert holm([]) == [] and holm([None]) == [None] and holm([0.2]) == [0.2]


def test_holm_rejects_what_its_definition_rejects():
    """Step down: go through the p-values from the smallest on and stop at the first that is above level / (number left)."""
    chance = np.random.default_rng(2)
    for _ in range(200):
        values = chance.uniform(0, 0.1, size=chance.integers(1, 8)).tolist()
        corrected = holm(values)
        for level in (0.01, 0.05, 0.1):
            rejected = set()
            for i, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
                if values[place] > level / (len(values) - i):
                    break
                rejected.add(place)
            assert {place for place, value in enumerate(corrected) if value <= level} == rejected


def every_draw(sums, figure, a, b, seeds=None):
    """The exact p-value, over all draws of examples, and of seeds too where they are given; in plain loops."""
    runs, examples = range(sums.shape[1]), range(sums.shape[2])

    def difference(drawn_seeds, drawn):
        picked = sums[:, :, list(drawn)].sum(2)
        each = [float(figure(picked[a, s]) - figure(picked[b, s])) for s in runs]
        plain, moved = sum(each) / len(runs), sum(each[s] for s in drawn_seeds) / len(runs)
        return plain if seeds is None else plain + (moved - plain) * math.sqrt(len(runs) / (len(runs) - 1))

    observed = difference(runs, examples)
    drawn_seeds = [tuple(runs)] if seeds is None else list(itertools.product(runs, repeat=len(runs)))
    every = [difference(chosen, drawn) for chosen in drawn_seeds for drawn in itertools.product(examples, repeat=len(examples))]
    return sum(abs(one - observed) >= abs(observed) - 1e-12 for one in every) / len(every)


CASES = [
    hits([[1, 1, 1, 0, 1]], [[0, 1, 0, 0, 1]]),
    hits([[1, 1, 1, 1, 1]], [[0, 1, 1, 1, 0]]),
    hits([[1, 0, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]], [[0, 0, 1, 1], [0, 1, 0, 0], [0, 1, 1, 1]]),
]


@pytest.mark.parametrize("sums", CASES)
def test_the_bootstrap_over_examples_comes_near_all_draws(sums):
    exact = every_draw(sums, ratio, 0, 1)
    found = Bootstrap(sums, ratio, draws=20_000).over_examples(0, 1, range(sums.shape[1]))
    assert found == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 20_000))


def test_the_bootstrap_over_seeds_and_examples_comes_near_all_draws():
    sums = CASES[2]
    exact = every_draw(sums, ratio, 0, 1, seeds=True)
    assert exact != pytest.approx(every_draw(sums, ratio, 0, 1), abs=0.02), "the case would not tell the two apart"
    found = Bootstrap(sums, ratio, draws=20_000).over_both(0, 1, range(3))
    assert found == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 20_000))


def test_what_seeds_add_has_the_spread_of_their_mean():
    """With so many examples that they matter little, the drawn means spread as the mean of five seeds does."""
    chance = np.random.default_rng(7)
    sums = hits(chance.random((5, 3000)) < np.array([0.5, 0.6, 0.7, 0.8, 0.9])[:, None], np.full((5, 3000), 0.6))
    found = Bootstrap(sums, ratio, draws=2000)
    each = found.observed[0] - found.observed[1]
    t = abs(each.mean()) / (each.std(ddof=1) / math.sqrt(5))
    assert found.over_both(0, 1, range(5)) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=0.06)


def test_the_bootstrap_of_a_figure_that_is_no_mean_of_examples():
    chance = np.random.default_rng(3)
    wanted = chance.normal(size=5)
    predicted = [wanted + chance.normal(size=5), 0.2 * wanted + chance.normal(size=5)]
    ones = np.ones(5)
    sums = np.stack([np.stack([ones, x, wanted, x * x, wanted * wanted, x * wanted], -1) for x in predicted])[:, None]
    found = Bootstrap(sums, pearson, draws=20_000)
    assert found.observed[:, 0] == pytest.approx([np.corrcoef(x, wanted)[0, 1] for x in predicted])
    exact = every_draw(sums, pearson, 0, 1)
    assert found.over_examples(0, 1, [0]) == pytest.approx(exact, abs=0.015)


def test_draws_do_not_depend_on_the_other_systems_nor_on_the_chunks(monkeypatch):
    chance = np.random.default_rng(4)
    right = (chance.random((3, 2, 40)) < 0.6).astype(float)
    alone, beside = Bootstrap(hits(*right[:2]), ratio, draws=300), Bootstrap(hits(*right), ratio, draws=300)
    assert np.allclose(alone.drawn, beside.drawn[:, :2], rtol=1e-12)
    monkeypatch.setattr(statistics, "CHUNK", 130)
    assert np.allclose(Bootstrap(hits(*right), ratio, draws=300).drawn, beside.drawn, rtol=1e-12)
    assert not np.allclose(Bootstrap(hits(*right), ratio, draws=300, seed=1).drawn, beside.drawn)


def test_pairing_sees_what_apart_would_be_lost():
    """b is right wherever a is, and on a few examples more: a small difference, but a sure one."""
    chance = np.random.default_rng(5)
    b = (chance.random(500) < 0.5).astype(float)
    a = b.copy()
    a[np.flatnonzero(b)[:12]] = 0
    paired = Bootstrap(hits([a], [b]), ratio, draws=2000).over_examples(0, 1, [0])
    apart = Bootstrap(hits([a], [chance.permutation(b)]), ratio, draws=2000).over_examples(0, 1, [0])
    assert paired < 0.01 < 0.2 < apart


def test_under_no_difference_the_p_values_are_about_uniform():
    chance = np.random.default_rng(6)
    low = 0
    for trial in range(200):
        sums = hits([(chance.random(60) < 0.7)], [(chance.random(60) < 0.7)])
        low += Bootstrap(sums, ratio, draws=200, seed=trial).over_examples(0, 1, [0]) <= 0.1
    assert 6 <= low <= 40  # 20 expected


def test_equal_systems_failed_runs_and_one_seed():
    sums = hits([[1, 0, 1, 1]] * 2, [[1, 0, 1, 1]] * 2, [[0, 0, 1, 1], [1, 0, 0, 0]])
    found = Bootstrap(sums, ratio, draws=200)
    assert found.over_examples(0, 1, [0, 1]) == 1.0 and found.over_both(0, 1, [0, 1]) == 1.0
    assert found.over_both(0, 2, [0]) is None
    sums[2, 1] = np.nan  # the run of the second seed failed
    broken = Bootstrap(sums, ratio, draws=200)
    assert broken.over_examples(0, 2, [0]) == found.over_examples(0, 2, [0])
    assert broken.over_examples(0, 2, [0, 1]) is None
    with pytest.raises(ValueError, match="nothing to draw from"):
        Bootstrap(sums[:, :, :0], ratio)


def test_a_p_value_is_never_zero_and_counts_what_is_as_far():
    assert p_value(1.0, np.array([1.0] * 99)) == pytest.approx(1 / 100)
    assert p_value(1.0, np.array([0.0, 2.0, 1.5, 1.0])) == pytest.approx(3 / 5)
    assert p_value(0.0, np.array([0.1, -0.1])) == 1.0
