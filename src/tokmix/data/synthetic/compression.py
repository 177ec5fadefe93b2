"""Compression (MAD: Poli et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws
from tokmix.data.synthetic.task import FEWER, Learns, Task


@dataclass(frozen=True, kw_only=True)
class Compression(Task):
    """Random tokens, then the compression token (the last id). Targets: every token, at its own position, predicted by a decoder that gets
    only the state at the last position (training.synthetic.AutoEncoder). The compression token itself is no target."""

    vocab: int = 16
    length: int = 32

    learns: ClassVar[Learns] = "rebuild"
    varied: ClassVar[dict[str, Sequence[float]]] = {"vocab": (32, 64, 128), "length": (64, 128, 256), "examples": FEWER}

    def check(self) -> None:
        for name, least in (("vocab", 3), ("length", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} should be at least {least}: there is the compression token too")

    @property
    def answers(self) -> range:
        return range(self.vocab - 1)

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs = draws.below(self.vocab - 1, self.length)
        targets = inputs.copy()
        inputs[:, -1] = self.vocab - 1
        targets[:, -1] = IGNORE
        return inputs, targets

    def spell(self, token: int) -> str:
        return "press" if token == self.vocab - 1 else f"t{token}"
