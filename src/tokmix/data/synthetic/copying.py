"""Selective copying (MAD: Poli et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws
from tokmix.data.synthetic.task import FEWER, Task


@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(Task):
    """`copies` tokens scattered among blanks, then the copy token, then `copies` blanks. Targets: at those last blanks, the tokens in their
    order. The last two ids are the blank and the copy token; the places of the tokens are a uniform choice."""

    vocab: int = 16
    length: int = 256
    copies: int = 16

    varied: ClassVar[dict[str, Sequence[float]]] = {
        "vocab": (32, 64, 128), "length": (512, 1024), "examples": FEWER, "copies": (32, 64, 96),
    }  # fmt: skip

    def check(self) -> None:
        checks.at_least("vocab", self.vocab, 4)
        checks.at_least("copies", self.copies, 1)
        if self.length < 2 * self.copies + 1:
            raise ValueError(f"length={self.length} is too short for copies={self.copies}: at least {2 * self.copies + 1}")

    @property
    def answers(self) -> range:
        return range(self.vocab - 2)

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        copies, scattered = self.copies, self.length - self.copies - 1
        tokens = draws.below(len(self.answers), copies)
        inputs = np.full((len(tokens), self.length), self.vocab - 2)
        np.put_along_axis(inputs, np.sort(draws.distinct(copies, scattered), axis=1), tokens, axis=1)
        inputs[:, scattered] = self.vocab - 1
        targets = np.full_like(inputs, IGNORE)
        targets[:, -copies:] = tokens
        return inputs, targets

    def spell(self, token: int) -> str:
        return {self.vocab - 2: "-", self.vocab - 1: "copy"}.get(token, f"t{token}")
