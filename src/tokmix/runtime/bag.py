"""The bag of words of a model folder in numpy alone: TF-IDF of word and character n-grams, and one linear layer.

`tokmix train` fits it with scikit-learn (training/linear.py); here it only answers. The files are those of a model folder:

    linear.json          the terms of each vocabulary
    linear.safetensors   idf of the terms, weights [classes, features], bias [classes]; weights of int8 with `scale` [classes]
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokmix.core.optional import np
from tokmix.runtime.safetensors import read_tensors

NAME, WEIGHTS = "linear.json", "linear.safetensors"
FORMAT, VERSION = "tokmix-linear", 1
_SPACES = re.compile(r"\s\s+")


@dataclass(frozen=True)
class Vocabulary:
    analyzer: str  # word or char_wb, as scikit-learn names them
    ngram_range: tuple[int, int]
    places: dict[str, int]  # term -> feature
    idf: np.ndarray  # [features]
    words: re.Pattern[str]

    def terms(self, text: str) -> Iterator[str]:
        """As TfidfVectorizer cuts a text."""
        low, high = self.ngram_range
        if self.analyzer == "word":
            found = self.words.findall(text.lower())
            for n in range(low, high + 1):
                yield from found if n == 1 else (" ".join(found[i : i + n]) for i in range(len(found) - n + 1))
            return
        for word in _SPACES.sub(" ", text.lower()).split():
            padded = f" {word} "
            for n in range(low, high + 1):
                yield from (padded[i : i + n] for i in range(max(len(padded) - n, 0) + 1))
                if len(padded) <= n:  # a short word is counted once
                    break

    def features(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """-> (numbers of the features, their values: sublinear TF-IDF of length 1)"""
        counts = Counter(place for term in self.terms(text) if (place := self.places.get(term)) is not None)
        places = np.fromiter(counts, dtype=np.int64, count=len(counts))
        values = (1 + np.log(np.fromiter(counts.values(), dtype=np.float64, count=len(counts)))) * self.idf[places]
        return places, values / max(float(np.sqrt(values @ values)), 1e-300)


@dataclass(frozen=True)
class BagOfWords:
    vocabularies: list[Vocabulary]
    weights: np.ndarray  # [features, classes] float32 or int8
    scale: np.ndarray  # [classes]
    bias: np.ndarray  # [classes]
    single: bool  # one score a text, of regress

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, classes] float32; [texts] of regress"""
        found = np.zeros((len(texts), len(self.bias)))
        for row, text in zip(found, texts, strict=True):
            first = 0
            for one in self.vocabularies:
                places, values = one.features(text)
                row += values @ self.weights[places + first]
                first += len(one.idf)
        found = (found * self.scale + self.bias).astype(np.float32)
        return found[:, 0] if self.single else found


def load(folder: Path) -> BagOfWords:
    path = folder / NAME
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            raise ValueError(f"format {known.get('format')!r}, version {known.get('version')!r}; version {VERSION} is read")
        tensors = read_tensors(folder / WEIGHTS)
        vocabularies = [
            Vocabulary(
                one["analyzer"], tuple(one["ngram_range"]), {term: i for i, term in enumerate(one["terms"])}, tensors[f"idf.{i}"],
                re.compile(one.get("token_pattern", r"(?u)\w+")),
            )
            for i, one in enumerate(known["vocabularies"])
        ]  # fmt: skip
        weights = np.ascontiguousarray(tensors["weights"].T)
        scale = tensors.get("scale", np.ones(weights.shape[1], np.float32))
        return BagOfWords(vocabularies, weights, scale, tensors["bias"], known["task"] == "regress")
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def pair_text(texts: Sequence[str]) -> str:
    """The text whose words are counted. Of a pair: where each word stands, and whether the other text has it."""
    if len(texts) == 1:
        return texts[0]
    first, second = (text.lower().split() for text in texts)
    there, here = set(first), set(second)
    marked = [*(f"2_{word}" for word in second), *(f"{'b' if word in there else 'n'}_{word}" for word in second)]
    return " ".join([*first, *marked, *(f"m_{word}" for word in first if word not in here)])
