"""In-context recall, plain and noisy (MAD: Poli et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.synthetic.draws import Draws, repeated
from tokmix.data.synthetic.task import FEWER, Learns, Task, ask_next, even


@dataclass(frozen=True, kw_only=True)
class InContextRecall(Task):
    """Pairs (key, value): keys from the first half of the vocabulary, values from the second. A key has the same value within a row,
    but not across rows; the last pair repeats a key. Targets: at every repeated key, its value."""

    vocab: int = 16
    length: int = 128

    learns: ClassVar[Learns] = "next"
    varied: ClassVar[dict[str, Sequence[float]]] = {"vocab": (32, 64, 128), "length": (256, 512, 1024), "examples": FEWER}

    def check(self) -> None:
        even("vocab", self.vocab, 4)
        even("length", self.length, 4)

    @property
    def ordinary(self) -> int:
        """Tokens that are keys or values."""
        return self.vocab

    @property
    def answers(self) -> range:
        return range(self.ordinary // 2, self.ordinary)

    def real(self, draws: Draws, pairs: int) -> np.ndarray:
        """[n, P] bool: places of a key and its value, not of noise."""
        return np.ones((len(draws.bits()), pairs), dtype=bool)

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        pairs, half = self.length // 2, self.ordinary // 2
        keys, values_of = draws.below(half, pairs), draws.below(half, half)  # [n, P], [n, keys]
        real = self.real(draws, pairs)
        lots = np.where(real[:, :-1], draws.chances(pairs - 1), -1)
        keys[:, -1] = np.take_along_axis(keys, lots.argmax(1)[:, None], axis=1)[:, 0]
        inputs = np.stack([keys, half + np.take_along_axis(values_of, keys, axis=1)], axis=2)  # [n, P, 2]
        if not real.all():
            noise = self.ordinary + draws.below(self.vocab - self.ordinary, pairs, 2)
            inputs = np.where(real[..., None], inputs, noise)
        again = repeated(np.where(real, keys, -1 - np.arange(pairs)))  # a separate number for each pair of noise
        asked = np.stack([np.zeros_like(again), again], axis=2)
        flat = inputs.reshape(len(keys), -1)
        return flat, ask_next(flat, asked.reshape(flat.shape))

    def spell(self, token: int) -> str:
        half = self.ordinary // 2
        return f"k{token}" if token < half else f"v{token - half}" if token < self.ordinary else f"n{token - self.ordinary}"


@dataclass(frozen=True, kw_only=True)
class NoisyRecall(InContextRecall):
    """In-context recall where, with probability `noise`, two tokens of a separate vocabulary of `noise_vocab` (part of `vocab`) stand in
    a pair's place. At least one pair before the last is real. Targets: at every repeated key, its value; none at noise."""

    vocab: int = 32
    noise: float = 0.2
    noise_vocab: int = 16

    varied: ClassVar[dict[str, Sequence[float]]] = {**InContextRecall.varied, "vocab": (48, 80, 144), "noise": (0.4, 0.6, 0.8)}

    def check(self) -> None:
        even("length", self.length, 4)
        checks.within("noise", self.noise, 0, 1)
        checks.at_least("noise_vocab", self.noise_vocab, 1)
        if self.ordinary < 4 or self.ordinary % 2:
            left = f"vocab={self.vocab} with noise_vocab={self.noise_vocab} leaves {self.ordinary} tokens for pairs"
            raise ValueError(f"{left}, which should be even and at least 4")

    @property
    def ordinary(self) -> int:
        return self.vocab - self.noise_vocab

    def real(self, draws: Draws, pairs: int) -> np.ndarray:
        real = draws.chances(pairs) >= self.noise
        real[:, -1] = True
        sure = draws.below(pairs - 1)
        none = np.flatnonzero(~real[:, :-1].any(1))
        real[none, sure[none]] = True
        return real
