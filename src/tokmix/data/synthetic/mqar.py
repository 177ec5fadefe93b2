"""Multi-query associative recall (Arora et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws
from tokmix.data.synthetic.task import Task, even


@dataclass(frozen=True, kw_only=True)
class MultiQueryRecall(Task):
    """`pairs` pairs (key, value) first, then each key once more, at an even offset behind them; every other position holds a random token.
    Targets: at each key's second place, its value.

    Keys are different ones of 1 ... vocab/2 - 1, values different ones of vocab/2 ... vocab - 1. The gap g = 1, 2, ... of a key stands for
    offset 2 (g - 1) and is drawn with p(g) in proportion to g^(power - 1), without repetition: a small power asks soon. Random tokens
    come from the whole vocabulary; one of them may be a key of the row, and is not asked.
    """

    vocab: int = 8192
    length: int = 64
    pairs: int = 4
    power: float = 0.01
    examples: int = 20_000

    grid: ClassVar[tuple[tuple[int, int], ...]] = ((64, 4), (128, 8), (256, 16), (512, 64))  # length, pairs

    def check(self) -> None:
        even("vocab", self.vocab, 4)
        checks.at_least("pairs", self.pairs, 1)
        if self.vocab // 2 - 1 < self.pairs:
            raise ValueError(f"vocab={self.vocab} has too few keys for pairs={self.pairs}: at least {2 * self.pairs + 2}")
        if self.length < 4 * self.pairs:
            raise ValueError(f"length={self.length} is too short for pairs={self.pairs} and their queries: at least {4 * self.pairs}")
        if self.power <= 0:
            raise ValueError(f"power={self.power} should be above 0")

    @property
    def answers(self) -> range:
        return range(self.vocab // 2, self.vocab)

    def variations(self) -> list[Task]:
        """The customary grid of length and number of pairs."""
        return [replace(self, length=length, pairs=pairs) for length, pairs in self.grid]

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        half, first = self.vocab // 2, 2 * self.pairs
        keys = draws.distinct(self.pairs, half - 1) + 1
        values = draws.distinct(self.pairs, half) + half
        gaps = np.arange(1, (self.length - first) // 2 + 1)
        asked = first + 2 * draws.weighted(self.pairs, gaps ** (self.power - 1.0))  # [n, pairs]
        inputs = draws.below(self.vocab, self.length)
        inputs[:, 0:first:2], inputs[:, 1:first:2] = keys, values
        np.put_along_axis(inputs, asked, keys, axis=1)
        targets = np.full_like(inputs, IGNORE)
        np.put_along_axis(targets, asked, values, axis=1)
        return inputs, targets

    def spell(self, token: int) -> str:
        return str(token)
