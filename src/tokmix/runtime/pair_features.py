"""Measures of what the two texts of a pair have in common, for the bag of words.

A linear model of words cannot count how many words two texts share. Here each pair is measured (lengths, shares of words, of rare words,
of neighbouring words and of letters in common, numbers that only one has), and every measure becomes a few steps: is it above its 5 %
quantile, above its 18 % quantile, ... A linear model of steps follows any curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokmix.core.optional import np

STEPS = 8  # of a measure
SCALE = 0.3  # of a feature, beside TF-IDF's: rows of those have length 1
LETTERS = 400  # letters of a text whose trigrams are compared
PARTS = re.compile(r"\w+|[^\w\s]")

Idf = dict[str, float]  # how rare a word is


def measures(first: str, second: str, idf: Idf, unknown: float) -> list[float]:
    """unknown: the idf of a word that is not listed."""
    one, other = PARTS.findall(first.lower()), PARTS.findall(second.lower())
    a, b = set(one), set(other)
    both, gone, new = a & b, a - b, b - a
    rare_both, rare_gone, rare_new = (sum([idf.get(word, unknown) ** 2 for word in some]) for some in (both, gone, new))
    two_a, two_b = set(pairwise(one)), set(pairwise(other))
    letters_a, letters_b = _trigrams(first), _trigrams(second)
    numbers_gone, numbers_new = (sum(any(letter.isdigit() for letter in word) for word in some) for some in (gone, new))
    return [
        math.log1p(len(one)),
        math.log1p(len(other)),
        math.log((1 + len(one)) / (1 + len(other))),
        len(both) / max(len(a | b), 1),
        math.log1p(len(gone)),
        math.log1p(len(new)),
        rare_both / math.sqrt(max((rare_both + rare_gone) * (rare_both + rare_new), 1e-9)),
        rare_both / max(rare_both + rare_gone, 1e-9),
        rare_both / max(rare_both + rare_new, 1e-9),
        len(two_a & two_b) / max(len(two_a), 1),
        len(two_a & two_b) / max(len(two_b), 1),
        len(letters_a & letters_b) / max(len(letters_a | letters_b), 1),
        len(letters_a & letters_b) / max(len(letters_a), 1),
        len(letters_a & letters_b) / max(len(letters_b), 1),
        max((idf.get(word, unknown) for word in gone), default=0.0),
        max((idf.get(word, unknown) for word in new), default=0.0),
        float(numbers_gone),
        float(numbers_new),
        float(one[:1] == other[:1]),
        float(one[-1:] == other[-1:]),
    ]


def _trigrams(text: str) -> set[str]:
    shown = f" {text.lower()[:LETTERS]} "
    return {shown[i : i + 3] for i in range(len(shown) - 2)}


@dataclass(frozen=True)
class PairFeatures:
    """Measures as features: each by its distance from the mean, and by steps at its quantiles in the rows fitted on."""

    mean: np.ndarray  # [measures]
    deviation: np.ndarray  # [measures]
    knots: np.ndarray  # [measures, STEPS]

    @classmethod
    def fit(cls, found: np.ndarray) -> PairFeatures:
        """found: [rows, measures]"""
        knots = np.quantile(found, np.linspace(0.05, 0.95, STEPS), axis=0).T
        return cls(found.mean(0), np.maximum(found.std(0), 1e-6), knots)

    @property
    def size(self) -> int:
        return len(self.mean) + self.knots.size

    def __call__(self, found: np.ndarray) -> np.ndarray:
        """[rows, measures] -> [rows, measures * (1 + STEPS)] float32"""
        far = np.clip((found - self.mean) / self.deviation, -5, 5)
        above = (found[:, :, None] > self.knots).reshape(len(found), -1)
        return (SCALE * np.hstack([far, above])).astype(np.float32)

    def record(self) -> dict[str, list[float] | list[list[float]]]:
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist(), "knots": self.knots.tolist()}

    @classmethod
    def of(cls, record: dict[str, list[float] | list[list[float]]]) -> PairFeatures:
        return cls(*(np.asarray(record[name]) for name in ("mean", "deviation", "knots")))


def measured(pairs: Sequence[tuple[str, ...]], idf: Idf) -> np.ndarray:
    """[rows, measures]"""
    unknown = max(idf.values(), default=1.0)
    return np.array([measures(first, second, idf, unknown) for first, second in pairs])
