"""Memorisation (MAD: Poli et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws
from tokmix.data.synthetic.task import Task, even


@dataclass(frozen=True, kw_only=True)
class Memorisation(Task):
    """Pairs (key, insert token) under one map from keys to values for the whole data set, test rows included; no value ever stands in the
    inputs, so it has to be kept in the weights. Targets: at each insert token, the value of the key before it.

    The last id is the insert token; of the others the first half are keys, the second values (one id is left over if vocab is even).
    The map is one-to-one and depends on `map_seed` alone.
    """

    vocab: int = 256
    length: int = 32
    examples: int = 256
    map_seed: int = 0

    new_tests: ClassVar[bool] = False  # the map is what a model learns
    varied: ClassVar[dict[str, Sequence[float]]] = {"vocab": (512, 1024, 2048, 4096, 8192)}

    def check(self) -> None:
        even("length", self.length, 2)
        if self.vocab < 5:
            raise ValueError(f"vocab={self.vocab} should be at least 5: two keys, two values and the insert token")

    @property
    def _keys(self) -> int:
        return (self.vocab - 1) // 2

    @property
    def answers(self) -> range:
        return range(self._keys, 2 * self._keys)

    @property
    def ceiling(self) -> float:
        """The share of test targets whose key can be expected in the training set: below 1 with many keys and few examples."""
        return 1 - (1 - 1 / self._keys) ** (self.examples * self.length // 2)

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        values = np.argsort(Draws(self.map_seed).bits(self._keys)) + self._keys  # [keys]
        keys = draws.below(self._keys, self.length // 2)
        inputs = np.full((len(keys), self.length), self.vocab - 1)
        inputs[:, ::2] = keys
        targets = np.full_like(inputs, IGNORE)
        targets[:, 1::2] = values[keys]
        return inputs, targets

    def spell(self, token: int) -> str:
        return "?" if token == self.vocab - 1 else f"k{token}" if token < self._keys else f"v{token - self._keys}"
