"""Figures of merit against scikit-learn's and numpy's, and by hand where those have no say."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy")

from tokmix.training import metrics  # noqa: E402
from tokmix.training.evaluate import table  # noqa: E402


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_as_scikit_learn_has_them(classes):
    known = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(classes)
    targets = draw.integers(0, classes, 200)
    predicted = np.where(draw.random(200) < 0.6, targets, draw.integers(0, classes, 200))
    labels = [str(i) for i in range(classes)]
    found = metrics.of_classes(predicted, targets, labels)
    assert found["accuracy"] == pytest.approx(known.accuracy_score(targets, predicted))
    assert found["macro_f1"] == pytest.approx(known.f1_score(targets, predicted, average="macro"))
    assert found["matthews"] == pytest.approx(known.matthews_corrcoef(targets, predicted))
    assert found["confusion"] == known.confusion_matrix(targets, predicted).tolist()
    assert found["balance"] == {label: int((targets == i).sum()) for i, label in enumerate(labels)}


def test_a_constant_prediction_is_no_correlation():
    found = metrics.of_classes(np.zeros(4, dtype=int), np.array([0, 1, 0, 1]), ["a", "b"])
    assert (found["accuracy"], found["matthews"], found["majority"]) == (0.5, 0.0, 0.5)
    assert metrics.pearson(np.ones(3), np.arange(3.0)) == 0.0


def test_scores_as_numpy_and_scipy_have_them():
    draw = np.random.default_rng(0)
    a = draw.integers(0, 6, 100).astype(float)  # many equal values: their ranks are shared
    b = a + draw.normal(size=100)
    assert metrics.pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    stats = pytest.importorskip("scipy.stats")
    assert metrics.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert metrics.of_scores(a, b)["rmse"] == pytest.approx(math.sqrt(((a - b) ** 2).mean()))


def test_the_last_line_is_the_figure():
    found = {"split": "test", "truncated": 2, "rows": 4, "loss": 0.5}
    found |= metrics.of_classes(np.array([0, 1, 1, 1]), np.array([0, 1, 0, 1]), ["no", "yes"])
    lines = table("classify", found).splitlines()
    assert lines[0] == "4 rows of test, 2 of them cut" and lines[-1] == "accuracy 0.7500"
    assert [line.split() for line in lines[-3:-1]] == [["no", "1", "1", "0.500"], ["yes", "0", "2", "0.500"]]
