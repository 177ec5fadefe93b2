"""What the estimators take: texts, labels and weights in any container, checked, with errors that name the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d


def texts_of(X: Any) -> list[tuple[str, ...]]:
    """A tuple of one text, or of two, a row."""
    if isinstance(X, str):
        raise ValueError(f"X={X[:40]!r} is one text; X is a list of texts: [{X[:20]!r}]")
    if hasattr(X, "todense") or hasattr(X, "tocsr"):
        raise ValueError("X is a sparse matrix; it should hold texts")
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.ndim not in (1, 2):
        raise ValueError(f"X has shape {list(X.shape)}; it holds texts [n], or [n, 2] for pairs")
    if not isinstance(X, Iterable) or isinstance(X, (Mapping, Set)):
        raise ValueError(f"X={str(X)[:40]} is a {type(X).__name__}, not a list of texts")
    rows = [(row,) if isinstance(row, str) else row for row in X]
    for number, row in enumerate(rows):
        if not isinstance(row, (tuple, list, np.ndarray)) or not all(isinstance(text, str) for text in row):
            shown = row[0] if isinstance(row, (list, np.ndarray)) and len(row) == 1 else row
            raise ValueError(f"row {number} of X is {str(shown)[:60]}, of type {type(shown).__name__}; X holds texts")
        if len(row) not in (1, 2) or len(row) != len(rows[0]):
            raise ValueError(f"row {number} of X has {len(row)} texts; every row has one, or every row has two")
    return [tuple(str(text) for text in row) for row in rows]


def fit_texts(X: Any, y: Any = ...) -> list[tuple[str, ...]]:
    texts = texts_of(X)
    if not texts:
        raise ValueError("X has 0 texts; at least one is needed")
    if y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
    if y is not ...:
        check_consistent_length(texts, y)
        if len(texts) == 1:
            raise ValueError("X has 1 sample: at least two are needed to learn from")
    return texts


def kind_of_labels(y: Any) -> str | None:
    """None: one label a text; "matrix": zeros and ones [n, classes]; "lists": a list of labels a text."""
    if getattr(y, "ndim", 1) == 2:
        values = np.asarray(y)
        if values.shape[1] == 1:
            return None
        if not np.isin(values, (0, 1)).all():
            raise ValueError(f"y has shape {list(values.shape)} and values other than 0 and 1: one column a class, 1 where a text has it")
        return "matrix"
    rows = list(y)
    several = [isinstance(row, (list, tuple, set, frozenset, np.ndarray)) for row in rows]
    if not any(several):
        return None
    if not all(several):
        raise ValueError(f"row {several.index(False)} of y is one label, and other rows are lists of labels")
    even = len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 and not isinstance(rows[0], (set, frozenset))
    numbers = even and all(isinstance(value, (int, np.integer)) and value in (0, 1) for row in rows for value in row)
    return "matrix" if numbers else "lists"  # rows of zeros and ones, all of one length, are a matrix


def weights_of(texts: Sequence[object], sample_weight: Any, name: str = "sample_weight") -> Any:
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    weights = column_or_1d(np.full(len(texts), weights) if weights.ndim == 0 else weights)
    check_consistent_length(texts, weights)
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"{name} should be finite numbers of at least 0")
    if not weights.any():
        raise ValueError(f"every {name} is zero: there is nothing to learn from")
    return weights


def weighed(texts: list[tuple[str, ...]], targets: list[Any], weights: Any) -> tuple[list[tuple[str, ...]], list[Any], Any]:
    """Without the rows of weight 0, which would still be counted where the best weights are chosen."""
    if weights is None:
        return texts, targets, None
    kept = np.flatnonzero(weights)
    return [texts[i] for i in kept], [targets[i] for i in kept], weights[kept]
