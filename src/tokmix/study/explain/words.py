"""Which words decided a label: a word's effect is what the answer loses when the word is left out.

Leaving out is exact for whatever answers, the network, the bag of words or both, and costs one prediction a word. The effect is the
change of the log-odds of the predicted label, or of the score. `check` deletes the strongest words together and compares with as many
random ones: an attribution that is right drops the answer further.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tokmix.data.prepare.targets import LABELLED
from tokmix.runtime.model import Answer
from tokmix.training.model_folder import Trained
from tokmix.training.predict import Predictor

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
MOST = 400  # at most this many words of a text are tried
DRAWS = 10  # of random words, for the check
STRONGEST = 5
CANDIDATES = 60  # words that are tried together with others: those with the largest effects alone
TINY = 1e-7  # a probability nearer to 0 or 1 than this is taken for it


@dataclass(frozen=True)
class Word:
    text: str
    place: int  # which of the texts: 0, or 1 for the second of a pair
    start: int  # where in it
    effect: float  # on the log-odds of the label, or on the score: above 0 speaks for it


@dataclass(frozen=True)
class Check:
    before: float  # probability of the label, or the score
    without_strongest: float
    without_random: float  # the mean over draws
    words: list[str]  # the strongest together: each one costs most in addition to those before it


@dataclass(frozen=True)
class Attribution:
    answer: str  # the label, or "score"
    value: float
    words: list[Word]
    check: Check | None  # None: too few words
    left_out: int = 0  # words beyond MOST, which were not tried

    def record(self) -> dict[str, object]:
        return asdict(self)

    def lines(self, count: int = 8) -> list[str]:
        """Text lines, strongest first."""
        unit = "the score" if self.answer == "score" else f"{self.answer!r}"
        lines = [f"{self.answer} {self.value:.4f}"]
        for what, some in (("for", self.strongest(count)), ("against", self.strongest(count, -1))):
            shown = ", ".join(f"{word.text} {word.effect:+.2f}" for word in some)
            lines.append(f"words {what} {unit}: {shown or 'none'}")
        if self.check is not None:
            one = self.check
            lines.append(
                f"check: {one.before:.4f} with every word, {one.without_strongest:.4f} without the strongest ({', '.join(one.words)}), "
                f"{one.without_random:.4f} without {len(one.words)} random ones"
            )
        return [*lines, *([f"{self.left_out:,} words at the end were not tried"] if self.left_out else [])]

    def strongest(self, count: int, sign: int = 1) -> list[Word]:
        found = sorted((word for word in self.words if sign * word.effect > 0), key=lambda word: -sign * word.effect)
        return found[:count]


@dataclass(frozen=True)
class Piece:
    """A piece of a text: a word with its effect, or the characters between two words."""

    text: str
    effect: float | None = None
    share: float = 0.0  # of the largest effect, from -1 to 1


def pieces(texts: Sequence[str], found: Attribution) -> list[list[Piece]]:
    """Each text in pieces; joined they give the text."""
    most = max((abs(word.effect) for word in found.words), default=0.0) or 1.0
    whole = []
    for place, text in enumerate(texts):
        row, at = list[Piece](), 0
        for word in sorted((word for word in found.words if word.place == place), key=lambda word: word.start):
            row += [Piece(text[at : word.start])] if word.start > at else []
            row.append(Piece(word.text, word.effect, word.effect / most))
            at = word.start + len(word.text)
        whole.append([*row, *([Piece(text[at:])] if at < len(text) else [])])
    return whole


def attribute(trained: Trained, texts: Sequence[str], seed: int = 0, predictor: Predictor | None = None) -> Attribution:
    """Attribution for one text, or for the two texts of a pair."""
    if trained.task not in LABELLED:
        raise ValueError(f"words are shown for classes and scores, and {trained.folder} is a model for {trained.task}")
    predictor = predictor or Predictor(trained)
    given = tuple(texts)
    first = next(iter(predictor([given])))
    label = None if "score" in first else first.get("label") or max(first["probabilities"], key=first["probabilities"].__getitem__)
    places = [(place, found) for place, text in enumerate(given) for found in WORD.finditer(text)]
    tried = places[:MOST]
    rest = [_without(given, [one]) for one in tried]
    values = [_value(answer, label) for answer in predictor(rest)] if rest else []
    before = _value(first, label)
    words = [
        Word(found.group(), place, found.start(), _effect(before, after, label))
        for (place, found), after in zip(tried, values, strict=True)
    ]
    check = _check(predictor, given, tried, words, label, before, seed) if len(tried) > 1 else None
    return Attribution(label or "score", before, words, check, len(places) - len(tried))


def _value(answer: Answer, label: str | None) -> float:
    return float(answer["score"] if label is None else answer["probabilities"][label])


def _effect(before: float, after: float, label: str | None) -> float:
    return before - after if label is None else _odds(before) - _odds(after)


def _odds(chance: float) -> float:
    inside = min(max(chance, TINY), 1 - TINY)
    return math.log(inside / (1 - inside))


def _without(texts: Sequence[str], gone: Sequence[tuple[int, re.Match[str]]]) -> tuple[str, ...]:
    """The texts without these words. A text that would be empty becomes a dot, because models take no empty text."""
    left = list(texts)
    for place, found in sorted(gone, key=lambda one: -one[1].start()):
        left[place] = left[place][: found.start()] + left[place][found.end() :]
    return tuple(text if text.strip() else "." for text in left)


def _check(
    predictor: Predictor,
    texts: Sequence[str],
    tried: Sequence[tuple[int, re.Match[str]]],
    words: Sequence[Word],
    label: str | None,
    before: float,
    seed: int,
) -> Check:
    count = min(STRONGEST, max(1, len(tried) // 2))
    strongest = _strongest_together(predictor, texts, tried, words, label, count)
    draw = random.Random(seed)
    chosen = [strongest, *(draw.sample(range(len(tried)), count) for _ in range(DRAWS))]
    found = [_value(answer, label) for answer in predictor(_without(texts, [tried[i] for i in some]) for some in chosen)]
    return Check(before, found[0], sum(found[1:]) / DRAWS, [words[i].text for i in strongest])


def _strongest_together(
    predictor: Predictor,
    texts: Sequence[str],
    tried: Sequence[tuple[int, re.Match[str]]],
    words: Sequence[Word],
    label: str | None,
    count: int,
) -> list[int]:
    """Pick words one by one, each the one that costs most in addition to those already removed. Of two words
    with the same meaning, removing only one costs nothing."""
    order = sorted(range(len(tried)), key=lambda i: -words[i].effect)
    gone, left = order[:1], order[1:CANDIDATES]
    while len(gone) < count and left:
        values = [_value(one, label) for one in predictor(_without(texts, [tried[j] for j in [*gone, i]]) for i in left)]
        best = left[min(range(len(left)), key=values.__getitem__)]
        gone.append(best)
        left.remove(best)
    return gone
