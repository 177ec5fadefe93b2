"""Settings of the bag of words (linear.py), chosen on rows that it was not fitted on.

A small table gets cross-validation over all labelled rows, as a tenth of it says little: rows of the same text stay in one fold. A large
one gets the rows that are held out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokmix.core.optional import np
from tokmix.training import metrics
from tokmix.training.linear import Features, Kind, Linear, Row, Tried, fit_kind, pair_text, solve

ROWS, TEXT = 30_000, 3_000_000  # settings are compared on so many rows, or letters
WORK = 2_000_000  # rows times classes, at most
SECONDS = 20.0  # of a core, after which no new setting is tried
FOLDS, FOLDED_TEXT = (5, 3), 8_000_000  # of cross-validation, where so many letters are read in all at most
CHARACTER_TEXT = 1_000_000  # character n-grams are tried on so many letters: beyond, words are met often enough; of pairs they cost points
FOLDED_CHARACTERS = 500_000  # of all folds
LOGISTIC_CLASSES = 8  # logistic regression is tried up to so many classes: one fit a class takes long beyond
GRID = {"svm": (1.0, 0.3, 3.0, 0.1, 10.0), "logistic": (10.0, 3.0, 30.0), "ridge": (1.0, 0.3, 3.0, 0.1)}
HELD = 0.1  # share of the rows that settings are chosen on, where none are held out and cross-validation takes too long

Fold = tuple[np.ndarray, np.ndarray]  # numbers of the rows to fit on, and to measure on
Scores = dict[Kind, float]


def quality(task: str, scores: np.ndarray, targets: np.ndarray, balance: bool = False) -> float:
    """What settings are chosen by: accuracy (balance: macro-F1), micro-F1 with the border that is best for it, or one minus the share of
    variance that is left."""
    if task == "regress":
        return 1 - float(((scores - targets) ** 2).mean() / max(float(targets.var()), 1e-12))
    if task == "multilabel":
        return metrics.best_border(scores, targets)[0]
    return metrics.figure(task, scores, targets, balance)


def fit(
    task: str, rows: Sequence[Row], targets: np.ndarray, classes: int, held: np.ndarray | None, *, groups: np.ndarray | None = None,
    balance: bool = False, limit: float | None = None,
) -> Linear:  # fmt: skip
    """Fitted on the rows that are not held out, with the best settings. held: [rows] bool; groups: [rows] hashes, equal ones stay in one
    fold. limit: seconds by the clock after which no new setting is tried; None: SECONDS of a core."""
    began = time.monotonic()
    kept = np.ones(len(rows), dtype=bool) if held is None else ~held
    search = _Search(task, rows, targets, classes, balance, limit)
    kind = search.best(list(_folds(rows, classes, held, groups)))
    searched = time.monotonic()
    found = fit_kind(task, [row for row, one in zip(rows, kept, strict=True) if one], targets[kept], classes, kind, balance)
    found.tried, found.seconds, found.fit_seconds = search.tried, time.monotonic() - began, time.monotonic() - searched
    return found


def _folds(rows: Sequence[Row], classes: int, held: np.ndarray | None, groups: np.ndarray | None) -> Iterator[Fold]:
    letters, count = _letters(rows), len(rows)
    parts = next((one for one in FOLDS if one * letters <= FOLDED_TEXT and one * count * max(classes, 1) <= WORK), 0)
    draw = np.random.default_rng(0)
    if parts and count >= 2 * parts:
        place = (draw.integers(0, 2**63, count) if groups is None else groups.astype(np.uint64)) % parts
        for one in (one for one in range(parts) if 0 < (place == one).sum() < count):
            yield np.flatnonzero(place != one), np.flatnonzero(place == one)
        return
    held = draw.random(count) < HELD if held is None else held
    kept = np.flatnonzero(~held)
    most = min(ROWS, int(TEXT / max(letters / max(count, 1), 1)), WORK // max(classes, 1))
    if len(kept) > most:
        kept = np.sort(draw.choice(kept, most, replace=False))
    if held.any() and len(kept):
        yield kept, np.flatnonzero(held)


class _Search:
    def __init__(self, task: str, rows: Sequence[Row], targets: np.ndarray, classes: int, balance: bool, limit: float | None):
        self.task, self.rows, self.targets, self.classes, self.balance = task, rows, targets, classes, balance
        self.clock = time.process_time if limit is None else time.monotonic  # not to hang on what else the machine does
        self.seconds = SECONDS if limit is None else limit
        self.end = self.clock() + self.seconds
        self.pair = bool(rows) and not isinstance(rows[0], str)
        self.tried: list[Tried] = []
        self.borders: dict[Kind, list[float]] = {}  # of multilabel, fold by fold

    def best(self, folds: Sequence[Fold]) -> Kind:
        kinds = [
            Kind(name, C, plain=plain)
            for name, grid in GRID.items()
            if _applies(name, self.task, self.classes)
            for C in grid
            for plain in ((False,) if self.pair else (False, True))  # with and without punctuation
        ]
        found: list[Scores] = []
        for fold in folds:
            scores = self._words(fold, list(found[0]) if found else kinds, first=not found)
            if scores is None:  # no time for a whole one
                break
            found.append(scores)
        if not found:
            return kinds[0]
        means = {kind: float(np.mean([one[kind] for one in found])) for kind in found[0]}
        letters = sum(_letters([self.rows[i] for i in fold[0]]) for fold in folds[:1])
        if not self.pair and letters <= CHARACTER_TEXT and self.clock() < self.end - self.seconds / 2:
            few = max(1, min(len(found), FOLDED_CHARACTERS // max(letters, 1)))
            means |= self._characters(folds[:few], found, means)
        self.tried = [
            {"kind": one.kind, "C": one.C, "characters": one.characters, "plain": one.plain, "score": score} for one, score in means.items()
        ]
        best = max(means, key=lambda kind: means[kind])
        return replace(best, border=float(np.mean(self.borders[best]))) if self.borders else best

    def _words(self, fold: Fold, kinds: Sequence[Kind], first: bool) -> Scores | None:
        """Every kind; of the first fold what there is time for, the neighbours of the best one first."""
        scores, left = Scores(), list(kinds)
        shown, others = ([self.rows[i] for i in part] for part in fold)
        fitted = {plain: Features.fit(shown, False, plain) for plain in sorted({kind.plain for kind in kinds})}
        made = {plain: (matrix, features(others)) for plain, (features, matrix) in fitted.items()}
        while left:
            if scores and self.clock() > self.end:
                return scores if first else None
            best = max(scores, key=lambda kind: scores[kind]) if len(scores) > 1 else None
            kind = left[0] if best is None else min(left, key=lambda one: _distance(one, best))
            left.remove(kind)
            scores[kind] = self._score(kind, fold, *made[kind.plain])
        return scores

    def _characters(self, folds: Sequence[Fold], found: Sequence[Scores], means: Scores) -> Scores:
        """The best two with characters too: what they gain on these folds over words alone."""
        best = sorted(means, key=lambda kind: -means[kind])[:2]
        gains: dict[Kind, list[float]] = {kind: [] for kind in best}
        for fold, known in zip(folds, found, strict=False):
            shown, others = ([self.rows[i] for i in part] for part in fold)
            for plain in sorted({kind.plain for kind in best}):
                if gains[best[0]] and self.clock() > self.end:
                    break
                made, matrix = Features.fit(shown, False, plain)
                more, wider = made.with_characters([pair_text(row) for row in shown], matrix)
                other = more(others)
                for kind in (one for one in best if one.plain == plain and more is not made):
                    gains[kind].append(self._score(replace(kind, characters=True), fold, wider, other) - known[kind])
        return {replace(kind, characters=True): means[kind] + float(np.mean(some)) for kind, some in gains.items() if some}

    def _score(self, kind: Kind, fold: Fold, matrix: object, other: object) -> float:
        kept, held = fold
        weights, bias = solve(kind, matrix, self.targets[kept], self.classes, self.balance)
        scores = np.asarray(other @ weights.T + bias)
        if self.task == "multilabel":
            self.borders.setdefault(kind, []).append(metrics.best_border(scores, self.targets[held])[1])
        return quality(self.task, scores[:, 0] if self.task == "regress" else scores, self.targets[held], self.balance)


def _distance(one: Kind, other: Kind) -> tuple[bool, bool, float]:
    return one.plain != other.plain, one.kind != other.kind, abs(math.log(one.C / other.C))


def _letters(rows: Sequence[Row]) -> int:
    return sum(len(row) if isinstance(row, str) else sum(map(len, row)) for row in rows)


def _applies(kind: str, task: str, classes: int) -> bool:
    if task == "regress":
        return kind == "ridge"
    return kind == "svm" or (kind == "logistic" and classes <= LOGISTIC_CLASSES)
