"""Where one cost falls below another. Every length is checked, so steps and several crossings are found too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FARTHEST = 32_768
Formula = Callable[[int], int]


@dataclass(frozen=True)
class Crossing:
    """For lengths 1 to farthest: intervals (first, last) where a costs less than b, and where b costs less than a."""

    a_less: list[tuple[int, int]]
    b_less: list[tuple[int, int]]
    farthest: int

    @property
    def winner(self) -> str | None:
        """Which one costs less at the longest length: 'a', 'b', or None if equal."""
        for name, runs in (("a", self.a_less), ("b", self.b_less)):
            if runs and runs[-1][1] == self.farthest:
                return name
        return None

    @property
    def start(self) -> int | None:
        """The smallest length from which the winner costs less at every length up to the farthest."""
        if self.winner is None:
            return None
        return (self.a_less if self.winner == "a" else self.b_less)[-1][0]


def crossing(a: Formula, b: Formula, farthest: int = FARTHEST) -> Crossing:
    signs = [(x > y) - (x < y) for x, y in ((a(n), b(n)) for n in range(1, farthest + 1))]
    return Crossing(_runs(signs, -1), _runs(signs, 1), farthest)


def _runs(signs: list[int], wanted: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for n, sign in enumerate(signs, start=1):
        if sign != wanted:
            continue
        if found and found[-1][1] == n - 1:
            found[-1] = (found[-1][0], n)
        else:
            found.append((n, n))
    return found


def sentence(a: str, b: str, met: Crossing) -> str:
    """'A costs less than B from 385 tokens on'"""
    if met.winner is None:
        if not met.a_less and not met.b_less:
            return f"{a} and {b} cost the same at every length"
        return f"{a} and {b} cost the same at {met.farthest:,} tokens"
    less, more, runs = (a, b, met.a_less) if met.winner == "a" else (b, a, met.b_less)
    text = f"{less} costs less than {more} " + ("at every length" if met.start == 1 else f"from {met.start:,} tokens on")
    earlier = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in runs[:-1]]
    if earlier:
        text += f", and at {', '.join(earlier[:4])}{', ...' if len(earlier) > 4 else ''}"
    return text
