"""A bag of words: TF-IDF of word 1-2 grams, of character 2-5 grams where they help, of pairs what the two texts have in common
(runtime/pair_features.py), and one linear layer, from scikit-learn.

It is fitted in seconds, before the network, with the settings that are best on held-out rows. Its output for a row is a score for
each class (or the target's value for regress). A model folder keeps it without pickle:

    linear.json          kind, settings, the terms of each vocabulary
    linear.safetensors   idf of the terms, weights [classes, features], bias [classes]
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from tokmix.core.optional import need, np
from tokmix.runtime.bag import Row as Row
from tokmix.runtime.bag import pair_text as pair_text
from tokmix.runtime.pair_features import PairFeatures, measured
from tokmix.training.checkpoint import load_tensors, save_tensors

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfVectorizer

NAME, WEIGHTS = "linear.json", "linear.safetensors"
FORMAT, VERSION = "tokmix-linear", 2
ABSENT = "bag of words: not fitted, scikit-learn is not installed (pip install 'tokmix[lab]')"
ITERATIONS = 1000  # of liblinear, at most
TERMS = 200_000  # of a vocabulary, the commonest
WORK = 10_000_000  # rows times classes of a fit: of more rows a part is drawn, as one fit a class takes minutes
TOLERANCE = 1e-2  # of liblinear: what it answers does not change beyond
WORDS = {"analyzer": "word", "ngram_range": [1, 2], "token_pattern": r"(?u)\w+|[^\w\s]"}
PLAIN = {**WORDS, "token_pattern": r"(?u)\b\w\w+\b"}  # without punctuation and words of one letter
CHARACTERS = {"analyzer": "char_wb", "ngram_range": [2, 5], "min_df": 3}


def available() -> bool:
    return importlib.util.find_spec("sklearn") is not None


@dataclass(frozen=True)
class Kind:
    """What is fitted: svm (squared hinge loss), logistic or ridge; C: the weight of the data against the penalty; border: the score above
    which a label of multilabel is given."""

    kind: str
    C: float
    characters: bool = False
    plain: bool = False
    border: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        name = {"svm": "linear SVM", "logistic": "logistic regression", "ridge": "ridge regression"}[self.kind]
        words = "word 1-2 grams" + (" without punctuation" if self.plain else "")
        return f"{name} with C {self.C:g} on {words}" + (" and character 2-5 grams" if self.characters else "")


class Tried(TypedDict):
    """A kind, and how well it did on the held-out rows."""

    kind: str
    C: float
    characters: bool
    plain: bool
    score: float


@dataclass
class Features:
    """Rows -> a sparse matrix: TF-IDF of terms, and of pairs what the two texts have in common."""

    vectorizers: list[TfidfVectorizer]
    pairs: PairFeatures | None = None

    @classmethod
    def fit(cls, rows: Sequence[Row], characters: bool, plain: bool = False) -> tuple[Features, csr_matrix]:
        """-> (features, their matrix of these rows)"""
        texts = [pair_text(row) for row in rows]
        words, counted = _fitted(PLAIN if plain else WORDS, texts)
        if plain and words is None:  # texts of single letters
            return cls.fit(rows, characters)
        if words is None:
            raise ValueError("a bag of words finds no words in the texts")
        found, parts = cls([words]), [counted]
        if rows and not isinstance(rows[0], str):
            shared = measured(_pairs(rows), found.idf)
            found.pairs = PairFeatures.fit(shared)
            parts.append(_sparse(found.pairs(shared)))
        if characters:
            return found.with_characters(texts, beside(parts))
        return found, beside(parts)

    def with_characters(self, texts: Sequence[str], matrix: csr_matrix) -> tuple[Features, csr_matrix]:
        """The same and n-grams of characters, where there are some; `matrix`: these features of these texts."""
        more, counted = _fitted(CHARACTERS, texts)
        return (self, matrix) if more is None else (Features([*self.vectorizers, more], self.pairs), beside([matrix, counted]))

    @cached_property
    def idf(self) -> dict[str, float]:
        words = self.vectorizers[0]
        return {term: float(words.idf_[place]) for term, place in words.vocabulary_.items() if " " not in term}

    def __call__(self, rows: Sequence[Row]) -> csr_matrix:
        """[rows, features] float32, sparse"""
        texts = [pair_text(row) for row in rows]
        parts = [self.vectorizers[0].transform(texts)]
        if self.pairs is not None:
            parts.append(_sparse(self.pairs(measured(_pairs(rows), self.idf))))
        return beside([*parts, *(one.transform(texts) for one in self.vectorizers[1:])])


@dataclass
class Linear:
    task: str
    kind: Kind
    made: Features
    weights: np.ndarray  # [classes, features], [1, features] of regress
    bias: np.ndarray  # [classes]
    seconds: float = 0.0
    fit_seconds: float = 0.0  # of those, without the search for settings
    rows: int = 0  # fitted on
    tried: list[Tried] = field(default_factory=list)

    @property
    def features(self) -> int:
        return int(self.weights.shape[1])

    def scores(self, rows: Sequence[Row]) -> np.ndarray:
        """[rows, classes] float32; [rows] of regress"""
        found = np.asarray(self.made(rows) @ self.weights.T + self.bias, dtype=np.float32)
        return found[:, 0] if self.task == "regress" else found

    def save(self, folder: Path) -> None:
        tensors = {"weights": torch.from_numpy(self.weights), "bias": torch.from_numpy(self.bias)}
        vocabularies = []
        for i, one in enumerate(self.made.vectorizers):
            tensors[f"idf.{i}"] = torch.from_numpy(one.idf_.astype(np.float32))
            settings = CHARACTERS if one.analyzer == "char_wb" else {**WORDS, "token_pattern": one.token_pattern}
            vocabularies.append({**settings, "terms": one.get_feature_names_out().tolist()})
        known = {
            "format": FORMAT, "version": VERSION, "task": self.task, "kind": self.kind.kind, "C": self.kind.C, "rows": self.rows,
            "seconds": self.seconds, "vocabularies": vocabularies, "pairs": None if self.made.pairs is None else self.made.pairs.record(),
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
        if known.get("format") != FORMAT or known.get("version") not in range(1, VERSION + 1):
            raise ValueError(f"format {known.get('format')!r}, version {known.get('version')!r}; versions up to {VERSION} are read")
        tensors, _ = load_tensors(folder / WEIGHTS)
        vectorizers = [_restored(one, tensors[f"idf.{i}"].numpy()) for i, one in enumerate(known["vocabularies"])]
        made = Features(vectorizers, PairFeatures.of(known["pairs"]) if known.get("pairs") else None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    plain = known["vocabularies"][0].get("token_pattern") == PLAIN["token_pattern"]
    kind = Kind(known["kind"], known["C"], len(vectorizers) > 1, plain)
    weights, bias = tensors["weights"].numpy(), tensors["bias"].numpy()
    return Linear(known["task"], kind, made, weights, bias, seconds=known["seconds"], rows=known["rows"])


def _vectorizer(settings: dict[str, Any], **more: object) -> TfidfVectorizer:
    text = need("sklearn.feature_extraction.text", "a bag of words")
    given = {name: value for name, value in settings.items() if name != "terms"} | {"ngram_range": tuple(settings["ngram_range"])}
    return text.TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **given, **more)


def _restored(settings: dict[str, Any], idf: np.ndarray) -> TfidfVectorizer:
    made = _vectorizer(settings, vocabulary={term: i for i, term in enumerate(settings["terms"])})
    made.idf_ = idf
    return made


def _fitted(settings: dict[str, Any], texts: Sequence[str]) -> tuple[TfidfVectorizer | None, csr_matrix | None]:
    """A vocabulary of these texts, and their matrix; (None, None) where no term is common enough, or no text has one."""
    made = _vectorizer(settings, max_features=TERMS)
    try:
        return made, made.fit_transform(texts)
    except ValueError:
        return None, None


def beside(parts: Sequence[csr_matrix]) -> csr_matrix:
    from scipy.sparse import hstack

    return parts[0] if len(parts) == 1 else hstack(parts).tocsr()


def _sparse(dense: np.ndarray) -> csr_matrix:
    from scipy.sparse import csr_matrix

    return csr_matrix(dense)


def _pairs(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [row for row in rows if not isinstance(row, str)]


def solve(kind: Kind, features: csr_matrix, targets: np.ndarray, classes: int, balance: bool) -> tuple[np.ndarray, np.ndarray]:
    """-> (weights [classes, features], bias [classes])"""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    more = {"class_weight": "balanced" if balance else None, "max_iter": ITERATIONS, "tol": TOLERANCE, "random_state": 0}
    if kind.kind == "ridge":
        solved = Ridge(alpha=1 / kind.C, solver="lsqr").fit(features, targets)
        return np.asarray(solved.coef_, dtype=np.float32)[None], np.asarray([solved.intercept_], dtype=np.float32)
    if kind.kind == "svm" and targets.ndim == 1 and not balance and len(known := np.unique(targets)) > 2:  # all classes in one call
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            solved = LinearSVC(C=kind.C, dual=True, **more).fit(features, targets)
        weights, bias = np.zeros((classes, features.shape[1]), dtype=np.float32), np.full(classes, -10.0, dtype=np.float32)
        weights[known], bias[known] = solved.coef_, solved.intercept_
        return weights, bias
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
                solved = LinearSVC(C=kind.C, dual=True, **more)
            else:
                solved = LogisticRegression(C=kind.C, solver="liblinear", dual=True, **more)
            solved.fit(features, column)
        weights[k], bias[k] = solved.coef_[0], solved.intercept_[0]
    if len(columns) < classes:  # two classes share one plane
        return np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
    return weights, bias


def rows_fitted(rows: int, classes: int) -> int:
    """Of so many rows."""
    return min(rows, WORK // max(classes, 1))


def fit_kind(task: str, rows: Sequence[Row], targets: np.ndarray, classes: int, kind: Kind, balance: bool = False) -> Linear:
    """Fitted on all these rows with these settings; on a part of them where that would take long."""
    if len(rows) > (most := rows_fitted(len(rows), classes)):
        part = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
        rows, targets = [rows[i] for i in part], targets[part]
    made, matrix = Features.fit(rows, kind.characters, kind.plain)
    weights, bias = solve(kind, matrix, targets, classes, balance)
    return Linear(task, kind, made, weights, bias - np.float32(kind.border), rows=len(rows))
