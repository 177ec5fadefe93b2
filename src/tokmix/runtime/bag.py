"""The bag of words of a model folder in numpy: TF-IDF of word and character n-grams, for pairs also what the two texts have in common
(pair_features.py), and one linear layer.

`tokmix train` fits it with scikit-learn (training/linear.py); here it only answers. The files are those of a model folder:

    linear.json          the terms of each vocabulary, the quantiles of the pairs' measures
    linear.safetensors   idf of the terms, weights [classes, features], bias [classes]; weights of int8 with `scale` [classes]
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from tokmix.core.optional import np
from tokmix.runtime.pair_features import PairFeatures, measured
from tokmix.runtime.safetensors import read_tensors

NAME, WEIGHTS = "linear.json", "linear.safetensors"
FORMAT, VERSION = "tokmix-linear", 2  # 1: the same without pairs
WORDS, LONGEST = 50_000, 60  # cached words; words of this many letters are not cached
CHUNK = 64  # texts at a time
Row = str | tuple[str, ...]  # a text, or the two of a pair


class Vocabulary:
    """The terms of one analyzer of scikit-learn, word or char_wb."""

    def __init__(self, analyzer: str, ngram_range: tuple[int, int], pattern: str, terms: Sequence[str], idf: np.ndarray, first: int):
        """first: the number of its first feature"""
        self.characters, self.ngram_range, self.pattern = analyzer == "char_wb", ngram_range, re.compile(pattern)
        self.places = {term: i for i, term in enumerate(terms)}
        self.idf, self.first = idf, first
        self.of_word = lru_cache(WORDS)(self._of_word)

    def features(self, text: str) -> list[int]:
        """The numbers of the known terms, with repetitions; split like TfidfVectorizer."""
        if self.characters:
            return [place for word in text.lower().split() for place in (self.of_word if len(word) < LONGEST else self._of_word)(word)]
        words = self.pattern.findall(text.lower())
        low, high = self.ngram_range
        terms = words if low == 1 else []
        for n in range(max(low, 2), high + 1):
            terms = terms + [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
        return [place for term in terms if (place := self.places.get(term)) is not None]

    def _of_word(self, word: str) -> list[int]:
        padded, terms = f" {word} ", list[str]()
        for n in range(self.ngram_range[0], self.ngram_range[1] + 1):
            terms += [padded[i : i + n] for i in range(max(len(padded) - n, 0) + 1)]
            if len(padded) <= n:  # a short word is counted once
                break
        return [place for term in terms if (place := self.places.get(term)) is not None]


@dataclass(frozen=True)
class BagOfWords:
    vocabularies: list[Vocabulary]
    pairs: PairFeatures | None
    weights: np.ndarray  # [features, classes] float32 or int8: words, pairs, characters
    scale: np.ndarray  # [classes]
    bias: np.ndarray  # [classes]
    single: bool  # one score per text, for regress

    def scores(self, rows: Sequence[Row]) -> np.ndarray:
        """[rows, classes] float32; [rows] of regress"""
        parts = [self._products(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
        found = (np.concatenate([np.zeros((0, len(self.bias))), *parts]) * self.scale + self.bias).astype(np.float32)
        return found[:, 0] if self.single else found

    def _products(self, rows: Sequence[Row]) -> np.ndarray:
        """Sublinear TF-IDF of length 1 for each vocabulary, and the measures of pairs, times the weights. [rows, classes]"""
        found, texts = np.zeros((len(rows), len(self.bias))), [pair_text(row) for row in rows]
        for one in self.vocabularies:
            counted = [Counter(one.features(text)) for text in texts]
            numbers = np.repeat(np.arange(len(rows)), [len(counts) for counts in counted])  # [terms]
            places = np.fromiter((place for counts in counted for place in counts), dtype=np.int64, count=len(numbers))
            counts = np.fromiter((count for counts in counted for count in counts.values()), dtype=np.float64, count=len(numbers))
            values = (1 + np.log(counts)) * one.idf[places]
            values /= np.sqrt(np.bincount(numbers, values * values, len(rows)))[numbers]
            for k, column in enumerate((values[:, None] * self.weights[places + one.first]).T):
                found[:, k] += np.bincount(numbers, column, len(rows))
        if self.pairs is not None:
            shared = self.pairs(measured([row for row in rows if not isinstance(row, str)], self.rarity))
            first = len(self.vocabularies[0].idf)
            found += shared @ self.weights[first : first + shared.shape[1]]
        return found

    @cached_property
    def rarity(self) -> dict[str, float]:
        """The idf of each word that is known."""
        words = self.vocabularies[0]
        return {term: float(words.idf[place]) for term, place in words.places.items() if " " not in term}


def load(folder: Path) -> BagOfWords:
    path = folder / NAME
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("format") != FORMAT or known.get("version") not in range(1, VERSION + 1):
            raise ValueError(f"format {known.get('format')!r}, version {known.get('version')!r}; versions up to {VERSION} are read")
        tensors = read_tensors(folder / WEIGHTS)
        pairs = PairFeatures.of(known["pairs"]) if known.get("pairs") else None
        vocabularies, first = [], 0
        for i, one in enumerate(known["vocabularies"]):
            idf = tensors[f"idf.{i}"]
            pattern = one.get("token_pattern", r"(?u)\w+")
            vocabularies.append(Vocabulary(one["analyzer"], tuple(one["ngram_range"]), pattern, one["terms"], idf, first))
            first += len(idf) + (0 if i or pairs is None else pairs.size)
        weights = np.ascontiguousarray(tensors["weights"].T)
        scale = tensors.get("scale", np.ones(weights.shape[1], np.float32))
        return BagOfWords(vocabularies, pairs, weights, scale, tensors["bias"], known["task"] == "regress")
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def pair_text(row: Row) -> str:
    """The text whose words are counted. For a pair, each word says which text it is in and whether the other text has it."""
    if isinstance(row, str):
        return row
    first, second = (text.lower().split() for text in row)
    there, here = set(first), set(second)
    marked = [*(f"2_{word}" for word in second), *(f"{'b' if word in there else 'n'}_{word}" for word in second)]
    return " ".join([*first, *marked, *(f"m_{word}" for word in first if word not in here)])
