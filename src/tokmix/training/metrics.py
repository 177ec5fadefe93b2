"""Figures of merit from predictions and targets, as numpy arrays: scikit-learn's and scipy's, with 95 % intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tokmix.core.optional import need, np

DRAWS = 400  # of a bootstrap over rows
MAIN = {"classify": "accuracy", "multilabel": "micro_f1", "regress": "pearson"}  # the main figure of a task


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """0 if one side is constant."""
    return _correlation(need("scipy.stats", "a correlation").pearsonr, a, b)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return _correlation(need("scipy.stats", "a correlation").spearmanr, a, b)


def _correlation(function: Callable, a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for values that are nearly equal
        found = float(function(a, b).statistic)
    return found if found == found else 0.0


def wilson(hits: int, rows: int) -> list[float]:
    """95 % interval of a proportion."""
    found = need("scipy.stats", "an interval").binomtest(hits, max(rows, 1)).proportion_ci(method="wilson")
    return [float(found.low), float(found.high)]


def pearson_interval(a: np.ndarray, b: np.ndarray) -> list[float]:
    if len(a) < 4 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return [-1.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = need("scipy.stats", "an interval").pearsonr(a, b).confidence_interval(0.95)
    return [float(found.low), float(found.high)] if found.low == found.low else [-1.0, 1.0]


def macro_f1(table: np.ndarray) -> float:
    """From counts, true class by predicted class. A class that neither occurs nor is predicted is ignored."""
    hits, both = np.diagonal(table, axis1=-2, axis2=-1), table.sum(-2) + table.sum(-1)
    shares = np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0).sum(-1) / np.maximum((both > 0).sum(-1), 1)
    return float(shares) if shares.ndim == 0 else shares


def _macro_interval(table: np.ndarray) -> list[float]:
    """By resampling rows; only a row's cell in the confusion matrix matters."""
    cells = np.flatnonzero(table)
    counts, rows, draw = table.flat[cells], int(table.sum()), np.random.default_rng(0)
    found = []
    for drawn in draw.multinomial(rows, counts / max(rows, 1), DRAWS):
        again = np.zeros(table.size)
        again[cells] = drawn
        found.append(macro_f1(again.reshape(table.shape)))
    return [float(np.quantile(found, share)) for share in (0.025, 0.975)]


def of_classes(predicted: np.ndarray, targets: np.ndarray, labels: list[str], intervals: bool = True) -> dict[str, Any]:
    known = need("sklearn.metrics", "figures")
    numbers = np.arange(len(labels))
    table = known.confusion_matrix(targets, predicted, labels=numbers)  # [classes, classes], true by predicted
    precision, recall, f1, counts = known.precision_recall_fscore_support(targets, predicted, labels=numbers, zero_division=0.0)
    rows, hits = len(targets), int(np.trace(table))
    constant = len(np.unique(targets)) < 2 or len(np.unique(predicted)) < 2
    found = {
        "accuracy": hits / max(rows, 1),
        "macro_f1": macro_f1(table),
        "matthews": 0.0 if constant else float(known.matthews_corrcoef(targets, predicted)),
        "majority": float(counts.max() / max(rows, 1)),
        "balance": {label: int(count) for label, count in zip(labels, counts, strict=True)},
        "labels": labels,
        "confusion": table.tolist(),
    }
    if intervals and rows:
        found["classes"] = {
            label: {"precision": float(precision[k]), "recall": float(recall[k]), "f1": float(f1[k]), "rows": int(counts[k])}
            for k, label in enumerate(labels)
        }
        found["intervals"] = {"accuracy": wilson(hits, rows), "macro_f1": _macro_interval(table)}
    return found


def of_label_sets(given: np.ndarray, targets: np.ndarray, labels: list[str], intervals: bool = True) -> dict[str, Any]:
    """Several labels per row: `given` and `targets` [rows, classes] of 0 and 1."""
    known = need("sklearn.metrics", "figures")
    precision, recall, f1, counts = known.precision_recall_fscore_support(targets, given, average=None, zero_division=0.0)
    found: dict[str, Any] = {
        "micro_f1": float(known.f1_score(targets, given, average="micro", zero_division=0.0)),
        "macro_f1": float(np.mean(f1)),
        "exact": float((given == targets).all(1).mean()),
        "hamming": float((given != targets).mean()),
        "balance": {label: int(count) for label, count in zip(labels, counts, strict=True)},
        "labels": labels,
    }
    if intervals:
        found["classes"] = {
            label: {"precision": float(precision[k]), "recall": float(recall[k]), "f1": float(f1[k]), "rows": int(counts[k])}
            for k, label in enumerate(labels)
        }
        found["intervals"] = {"micro_f1": _micro_interval(given, targets)}
    return found


def _micro_interval(given: np.ndarray, targets: np.ndarray) -> list[float]:
    hits, both, draw = (given * targets).sum(1), given.sum(1) + targets.sum(1), np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        rows = draw.integers(0, len(hits), len(hits))
        found.append(2 * hits[rows].sum() / max(both[rows].sum(), 1))
    return [float(np.quantile(found, share)) for share in (0.025, 0.975)]


def of_scores(predicted: np.ndarray, targets: np.ndarray, intervals: bool = True) -> dict[str, Any]:
    predicted, targets = predicted.astype(np.float64), targets.astype(np.float64)
    found: dict[str, Any] = {
        "pearson": pearson(predicted, targets),
        "spearman": spearman(predicted, targets),
        "rmse": float(need("sklearn.metrics", "figures").root_mean_squared_error(targets, predicted)),
    }
    return found | ({"intervals": {"pearson": pearson_interval(predicted, targets)}} if intervals else {})


def figure(task: str, outputs: np.ndarray, targets: np.ndarray, macro: bool = False) -> float:
    """The main figure of a task (macro: macro-F1 for classes), from outputs of a network."""
    if task == "regress":
        return pearson(outputs, targets)
    if task == "multilabel":
        given = (outputs > 0).astype(np.int64)
        return 2 * float((given * targets).sum()) / max(float(given.sum() + targets.sum()), 1.0)
    if macro:
        return macro_f1(_confusion(outputs, targets))
    return float((outputs.argmax(-1) == targets).sum()) / max(len(targets), 1)


def best_border(scores: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """-> (the best micro-F1 that one border for all labels has, that border)"""
    order = np.argsort(-scores, axis=None, kind="stable")
    hits, falling = np.cumsum(targets.ravel()[order], dtype=np.int64), scores.ravel()[order]
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + max(hits[-1], 1))
    at = int(f1.argmax())
    return float(f1[at]), float(falling[at : at + 2].mean())


def with_interval(task: str, outputs: np.ndarray, targets: np.ndarray, macro: bool = False) -> dict[str, float]:
    """The same, with its 95 % interval."""
    if task == "regress":
        low, high = pearson_interval(outputs, targets)
    elif task == "multilabel":
        low, high = _micro_interval((outputs > 0).astype(np.int64), targets)
    elif macro:
        low, high = _macro_interval(_confusion(outputs, targets))
    else:
        low, high = wilson(int((outputs.argmax(-1) == targets).sum()), len(targets))
    return {"figure": figure(task, outputs, targets, macro), "low": low, "high": high}


def _confusion(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[classes, classes], true by predicted"""
    table = np.zeros((outputs.shape[-1], outputs.shape[-1]), dtype=np.int64)
    np.add.at(table, (targets, outputs.argmax(-1)), 1)
    return table
