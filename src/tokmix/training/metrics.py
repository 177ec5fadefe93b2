"""Figures of merit, from predictions and targets as numpy arrays. Each is a few lines, checked in the tests against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

from tokmix.core.optional import np


def confusion(predicted: np.ndarray, targets: np.ndarray, classes: int) -> np.ndarray:
    """[classes, classes] counts, true class by predicted class"""
    return np.bincount(targets * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def accuracy(table: np.ndarray) -> float:
    return float(np.trace(table) / max(table.sum(), 1))


def macro_f1(table: np.ndarray) -> float:
    """Mean of the classes' F1; a class that neither occurs nor is predicted does not count."""
    hits, both = np.diag(table), table.sum(0) + table.sum(1)
    return float((2 * hits[both > 0] / both[both > 0]).mean()) if both.any() else 0.0


def matthews(table: np.ndarray) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004); 0 where one side is constant."""
    total, hits = float(table.sum()), float(np.trace(table))
    true, predicted = table.sum(1).astype(float), table.sum(0).astype(float)
    spread = (total**2 - predicted @ predicted) * (total**2 - true @ true)
    return float((hits * total - true @ predicted) / math.sqrt(spread)) if spread > 0 else 0.0


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / spread if spread > 0 else 0.0


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return pearson(ranks(a), ranks(b))


def of_classes(predicted: np.ndarray, targets: np.ndarray, labels: list[str]) -> dict[str, Any]:
    table = confusion(predicted, targets, len(labels))
    counts = table.sum(1)
    return {
        "accuracy": accuracy(table),
        "macro_f1": macro_f1(table),
        "matthews": matthews(table),
        "majority": float(counts.max() / max(counts.sum(), 1)),
        "balance": {label: int(count) for label, count in zip(labels, counts, strict=True)},
        "labels": labels,
        "confusion": table.tolist(),
    }


def of_scores(predicted: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    predicted, targets = predicted.astype(np.float64), targets.astype(np.float64)
    return {
        "pearson": pearson(predicted, targets),
        "spearman": spearman(predicted, targets),
        "rmse": float(np.sqrt(np.mean((predicted - targets) ** 2))),
    }
