"""A bag of words: TF-IDF of word 1-2 grams, of character 2-5 grams where they help, and one linear layer, from scikit-learn.

It is fitted in seconds, before the network, with the settings that are best on held-out rows. Its output for a row is a score for
each class (or the target's value for regress). A model folder keeps it without pickle:

    linear.json          kind, settings, the terms of each vocabulary
    linear.safetensors   idf of the terms, weights [classes, features], bias [classes]
"""

from __future__ import annotations

import importlib.util
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tokmix.core.optional import need, np
from tokmix.training.checkpoint import load_tensors, save_tensors

NAME, WEIGHTS = "linear.json", "linear.safetensors"
FORMAT, VERSION = "tokmix-linear", 1
ABSENT = "bag of words: not fitted, scikit-learn is not installed (pip install 'tokmix[lab]')"
ITERATIONS = 1000  # of liblinear, at most
TERMS = 200_000  # of a vocabulary, the commonest
SEARCH_ROWS, SEARCH_SECONDS = 30_000, 20.0  # settings are compared on so many rows, and no new one is tried after so long
CHARACTER_TEXT = 2_000_000  # character n-grams are tried up to so much text: beyond, words are met often enough and n-grams take minutes
LOGISTIC_CLASSES = 8  # logistic regression is tried up to so many classes: one fit a class takes long beyond
WORDS = {"analyzer": "word", "ngram_range": [1, 2], "token_pattern": r"(?u)\w+|[^\w\s]"}
CHARACTERS = {"analyzer": "char_wb", "ngram_range": [2, 5], "min_df": 3}
GRID = {"svm": (0.1, 0.3, 1.0, 3.0), "logistic": (4.0, 16.0), "ridge": (0.3, 1.0, 3.0)}


def available() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def pair_text(texts: Sequence[str]) -> str:
    """The text whose words are counted. Of a pair: where each word stands, and whether the other text has it."""
    if len(texts) == 1:
        return texts[0]
    first, second = (text.lower().split() for text in texts)
    there, here = set(first), set(second)
    marked = [*(f"2_{word}" for word in second), *(f"{'b' if word in there else 'n'}_{word}" for word in second)]
    return " ".join([*first, *marked, *(f"m_{word}" for word in first if word not in here)])


@dataclass(frozen=True)
class Kind:
    """What is fitted: svm (squared hinge loss), logistic or ridge; C: the weight of the data against the penalty."""

    kind: str
    C: float
    characters: bool = False

    def __str__(self) -> str:
        name = {"svm": "linear SVM", "logistic": "logistic regression", "ridge": "ridge regression"}[self.kind]
        return f"{name} with C {self.C:g} on word 1-2 grams" + (" and character 2-5 grams" if self.characters else "")


@dataclass
class Linear:
    task: str
    kind: Kind
    vectorizers: list[Any]
    weights: np.ndarray  # [classes, features], [1, features] of regress
    bias: np.ndarray  # [classes]
    seconds: float = 0.0
    rows: int = 0  # fitted on
    tried: list[dict[str, Any]] = field(default_factory=list)

    @property
    def features(self) -> int:
        return int(self.weights.shape[1])

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """[rows, classes] float32; [rows] of regress"""
        found = np.asarray(_features(self.vectorizers, texts) @ self.weights.T + self.bias, dtype=np.float32)
        return found[:, 0] if self.task == "regress" else found

    def save(self, folder: Path) -> None:
        tensors = {"weights": torch.from_numpy(self.weights), "bias": torch.from_numpy(self.bias)}
        vocabularies = []
        for i, one in enumerate(self.vectorizers):
            tensors[f"idf.{i}"] = torch.from_numpy(one.idf_.astype(np.float32))
            settings = CHARACTERS if one.analyzer == "char_wb" else WORDS
            vocabularies.append({**settings, "terms": one.get_feature_names_out().tolist()})
        known = {
            "format": FORMAT, "version": VERSION, "task": self.task, "kind": self.kind.kind, "C": self.kind.C, "rows": self.rows,
            "seconds": self.seconds, "vocabularies": vocabularies,
        }  # fmt: skip
        (folder / NAME).write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
        save_tensors(folder / WEIGHTS, tensors, {})


def load(folder: Path) -> Linear | None:
    """The bag of words of a model folder, where it has one."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            raise ValueError(f"format {known.get('format')!r}, version {known.get('version')!r}; version {VERSION} is read")
        tensors, _ = load_tensors(folder / WEIGHTS)
        vectorizers = [_restored(one, tensors[f"idf.{i}"].numpy()) for i, one in enumerate(known["vocabularies"])]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    kind = Kind(known["kind"], known["C"], len(vectorizers) > 1)
    weights, bias = tensors["weights"].numpy(), tensors["bias"].numpy()
    return Linear(known["task"], kind, vectorizers, weights, bias, known["seconds"], known["rows"])


def _vectorizer(settings: dict[str, Any], **more: Any) -> Any:
    text = need("sklearn.feature_extraction.text", "a bag of words")
    given = {name: value for name, value in settings.items() if name != "terms"} | {"ngram_range": tuple(settings["ngram_range"])}
    return text.TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **given, **more)


def _restored(settings: dict[str, Any], idf: np.ndarray) -> Any:
    made = _vectorizer(settings, vocabulary={term: i for i, term in enumerate(settings["terms"])})
    made.idf_ = idf
    return made


def _features(vectorizers: Sequence[Any], texts: Sequence[str]) -> Any:
    from scipy.sparse import hstack

    parts = [one.transform(texts) for one in vectorizers]
    return parts[0] if len(parts) == 1 else hstack(parts).tocsr()


def _fitted_vectorizers(texts: Sequence[str], characters: bool) -> list[Any]:
    made = []
    for settings in (WORDS, CHARACTERS)[: 1 + characters]:
        one = _vectorizer(settings, max_features=TERMS)
        try:
            made.append(one.fit(texts))
        except ValueError:  # no term is common enough, or a text has none
            if not made:
                raise ValueError("a bag of words finds no words in the texts") from None
    return made


def _solve(kind: Kind, features: Any, targets: np.ndarray, classes: int, balance: bool) -> tuple[np.ndarray, np.ndarray]:
    """-> (weights [classes, features], bias [classes])"""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    how = "balanced" if balance else None
    if kind.kind == "ridge":
        solved = Ridge(alpha=1 / kind.C, solver="lsqr").fit(features, targets)
        return np.asarray(solved.coef_, dtype=np.float32)[None], np.asarray([solved.intercept_], dtype=np.float32)
    columns = [targets[:, k] for k in range(classes)] if targets.ndim == 2 else [targets == k for k in range(classes)]
    columns = columns[1:] if targets.ndim == 1 and classes == 2 else columns
    weights = np.zeros((len(columns), features.shape[1]), dtype=np.float32)
    bias = np.full(len(columns), -1.0, dtype=np.float32)
    for k, column in enumerate(columns):
        if not column.any() or column.all():  # a class without rows, or the only one
            bias[k] = 1.0 if column.any() else -10.0
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a little before the optimum is as good
            if kind.kind == "svm":
                solved = LinearSVC(C=kind.C, max_iter=ITERATIONS, class_weight=how, random_state=0, dual=True)
            else:
                solved = LogisticRegression(C=kind.C, solver="liblinear", dual=True, max_iter=ITERATIONS, class_weight=how, random_state=0)
            solved.fit(features, column)
        weights[k], bias[k] = solved.coef_[0], solved.intercept_[0]
    if len(columns) < classes:  # two classes share one plane
        return np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    return weights, bias


def quality(task: str, scores: np.ndarray, targets: np.ndarray) -> float:
    """What settings are chosen by, on held-out rows: accuracy, micro-F1, or one minus the share of variance that is left."""
    if task == "regress":
        return 1 - float(((scores - targets) ** 2).mean() / max(float(targets.var()), 1e-12))
    if task == "multilabel":
        said = scores > 0
        return float(2 * (said & (targets > 0)).sum() / max(said.sum() + targets.sum(), 1))
    return float((scores.argmax(-1) == targets).mean())


def fit(
    task: str, texts: Sequence[str], targets: np.ndarray, classes: int, held: np.ndarray | None, *, balance: bool = False, seed: int = 0
) -> Linear:
    """Fitted on the rows that are not held out, with the settings that are best on those; `held`: [rows] bool."""
    began = time.monotonic()
    kept = np.ones(len(texts), dtype=bool) if held is None else ~held
    places = np.flatnonzero(kept)
    if len(places) > SEARCH_ROWS:
        places = np.sort(np.random.default_rng(seed).choice(places, SEARCH_ROWS, replace=False))
    kind = Kind("ridge" if task == "regress" else "svm", 0.3 if task != "regress" else 1.0)
    tried: list[dict[str, Any]] = []
    if held is not None and held.any():
        kind, tried = _search(task, texts, targets, classes, places, np.flatnonzero(held), balance, began)
    found = fit_kind(task, [text for text, one in zip(texts, kept, strict=True) if one], targets[kept], classes, kind, balance)
    found.tried, found.seconds = tried, time.monotonic() - began
    return found


def fit_kind(task: str, texts: Sequence[str], targets: np.ndarray, classes: int, kind: Kind, balance: bool = False) -> Linear:
    """Fitted on all these rows with these settings."""
    vectorizers = _fitted_vectorizers(texts, kind.characters)
    weights, bias = _solve(kind, _features(vectorizers, texts), targets, classes, balance)
    return Linear(task, kind, vectorizers, weights, bias, rows=len(texts))


def _search(
    task: str, texts: Sequence[str], targets: np.ndarray, classes: int, kept: np.ndarray, held: np.ndarray, balance: bool, began: float
) -> tuple[Kind, list[dict[str, Any]]]:
    """The best settings on the held-out rows: every C on words, then the best two with characters too."""
    shown = [texts[i] for i in kept]
    kinds = [Kind(name, C) for name, grid in GRID.items() for C in grid if _applies(name, task, classes)]
    tried: list[dict[str, Any]] = []

    def run(some: Sequence[Kind], vectorizers: list[Any]) -> None:
        features, other = _features(vectorizers, shown), _features(vectorizers, [texts[i] for i in held])
        for one in some:
            if tried and time.monotonic() - began > SEARCH_SECONDS:
                return
            weights, bias = _solve(one, features, targets[kept], classes, balance)
            scores = np.asarray(other @ weights.T + bias)
            score = quality(task, scores[:, 0] if task == "regress" else scores, targets[held])
            tried.append({"kind": one.kind, "C": one.C, "characters": one.characters, "score": score})

    run(kinds, _fitted_vectorizers(shown, False))
    best = sorted(tried, key=lambda one: -one["score"])[:2]
    if time.monotonic() - began < SEARCH_SECONDS / 2 and sum(map(len, texts)) <= CHARACTER_TEXT:
        run([Kind(one["kind"], one["C"], True) for one in best], _fitted_vectorizers(shown, True))
    top = max(tried, key=lambda one: one["score"])
    return Kind(top["kind"], top["C"], top["characters"]), tried


def _applies(kind: str, task: str, classes: int) -> bool:
    if task == "regress":
        return kind == "ridge"
    return kind == "svm" or (kind == "logistic" and classes <= LOGISTIC_CLASSES)
