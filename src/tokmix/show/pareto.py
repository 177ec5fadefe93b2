"""The Pareto front of score against cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def front(points: Iterable[tuple[float, float, T]], higher: bool) -> list[T]:
    """points: (cost, score, anything) -> those that no other beats at equal or lower cost, from low to high cost."""
    sign = 1 if higher else -1
    best, kept = -float("inf"), []
    for _, score, one in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if sign * score > best:
            best = sign * score
            kept.append(one)
    return kept
