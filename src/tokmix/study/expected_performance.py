"""Expected validation performance: the best score to expect from n trials of a random search, and its spread.

From N trials already run, sorted from worst to best v_1 .. v_N, the best of n more is guessed in two ways:

    with replacement       n draws from the N scores              P(best is v_i) = (i^n - (i-1)^n) / N^n      (Dodge et al. 2019)
    without replacement    every choice of n of the N trials      P(best is v_i) = C(i-1, n-1) / C(N, n)      (Tang et al. 2020)

Equal scores need no care: the chances of equal v_i add up. The chances are quotients of whole numbers, which Python divides with one
rounding however large they are, so nothing cancels or overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation of the best of n trials; index 0 is n = 1."""

    mean: list[float]
    deviation: list[float]


def with_replacement(scores: Sequence[float], higher: bool = True) -> Curve:
    return _curve(scores, higher, _chances_with)


def without_replacement(scores: Sequence[float], higher: bool = True) -> Curve:
    return _curve(scores, higher, _chances_without)


def _curve(scores: Sequence[float], higher: bool, chances: Callable[[int], Iterator[list[float]]]) -> Curve:
    """For n = 1 .. N."""
    for score in scores:
        if not math.isfinite(score):
            raise ValueError(f"a score of {score} has no place in an expectation: score a diverged trial at chance")
    ordered = sorted((float(score) for score in scores), reverse=not higher)
    means, deviations = [], []
    for weights in chances(len(ordered)):
        mean = math.fsum(weight * score for weight, score in zip(weights, ordered, strict=True))
        spread = math.fsum(weight * (score - mean) ** 2 for weight, score in zip(weights, ordered, strict=True))
        means.append(min(max(mean, min(ordered)), max(ordered)))  # rounding must not leave the range of the scores
        deviations.append(math.sqrt(spread))
    return Curve(means, deviations)


def _chances_with(count: int) -> Iterator[list[float]]:
    powers, whole = [1] * (count + 1), 1  # i^n, N^n
    powers[0] = 0
    for _ in range(count):
        powers, whole = [power * i for i, power in enumerate(powers)], whole * count
        yield [(above - below) / whole for below, above in pairwise(powers)]


def _chances_without(count: int) -> Iterator[list[float]]:
    choices = [1] * count  # C(i - 1, n - 1) for i = 1 .. N
    for _ in range(count):
        whole = sum(choices)  # = C(N, n)
        yield [choice / whole for choice in choices]
        total, shifted = 0, []
        for choice in choices:  # C(i - 1, n) = sum of C(j - 1, n - 1) over j < i
            shifted.append(total)
            total += choice
        choices = shifted
