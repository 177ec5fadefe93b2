"""Fuzzy in-context recall (MAD: Poli et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws, repeated
from tokmix.data.synthetic.recall import InContextRecall
from tokmix.data.synthetic.task import Examples, Learns, Task, ask_next

ABSENT = -1  # an unused place of a shorter motif


@dataclass(frozen=True, kw_only=True)
class FuzzyRecall(Task):
    """In-context recall where keys and values are motifs: 1 to `motif` adjacent tokens without repetition; keys of test rows always
    have `motif`. Within a row a key has one value. A probe pair stands somewhere and is asked again at the end; rows are padded on the
    left. Targets: every token of the value of a repeated key, at the position before that token.

    The last id is the pad token; of the others the first half, rounded down, are in keys, the rest in values. So a key ends where a
    token of a value stands. Lengths are uniform; pairs are drawn until the next one would not fit.
    """

    vocab: int = 16
    length: int = 128
    motif: int = 3

    learns: ClassVar[Learns] = "next"
    varied: ClassVar[dict[str, Sequence[float]]] = InContextRecall.varied

    def check(self) -> None:
        checks.at_least("motif", self.motif, 1)
        if self._keys < max(2, self.motif):
            least = 2 * max(2, self.motif) + 1
            raise ValueError(f"vocab={self.vocab} is too small for motifs of {self.motif} tokens without repetition: at least {least}")
        if self.length < 4 * self.motif:
            raise ValueError(f"length={self.length} is too short for a pair of motifs of {self.motif}, twice: at least {4 * self.motif}")
        if (self._keys + 1) ** self.motif >= 2**63:
            raise ValueError(f"vocab={self.vocab}, motif={self.motif}: there are more than 2^63 motifs")

    @property
    def _keys(self) -> int:
        return (self.vocab - 1) // 2

    @property
    def pad(self) -> int:
        return self.vocab - 1

    @property
    def answers(self) -> range:
        return range(self._keys, self.vocab - 1)

    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.length // 2  # more than can fit; the first is the probe
        sizes = draws.below(self.motif, pairs) + 1
        keys = _cut(draws.distinct(self.motif, self._keys, pairs), np.full_like(sizes, self.motif) if test else sizes)
        codes = ((keys + 1) * (self._keys + 1) ** np.arange(self.motif)).sum(-1)  # [n, P], another number for every motif
        # A key's value is drawn from the row and the key itself, so that a key that comes again brings the same one.
        own = Draws(draws.bits()[:, None], codes)
        values = _cut(own.distinct(self.motif, len(self.answers)), own.below(self.motif) + 1)
        values = np.where(values == ABSENT, ABSENT, values + self._keys)
        order = self._order(draws, (keys != ABSENT).sum(-1) + (values != ABSENT).sum(-1))
        used = order != ABSENT
        again = repeated(np.where(used, np.take_along_axis(codes, order, axis=1), -1 - np.arange(order.shape[1])))
        tokens = np.concatenate([keys, values], axis=2)  # [n, P, 2 motif]
        tokens = np.where(used[..., None], np.take_along_axis(tokens, order[..., None], axis=1), ABSENT)
        asked = np.broadcast_to(again[..., None] & (np.arange(2 * self.motif) >= self.motif), tokens.shape)
        return self._pad(tokens.reshape(len(tokens), -1), asked.reshape(len(tokens), -1))

    def _order(self, draws: Draws, sizes: np.ndarray) -> np.ndarray:
        """Which pair comes when, [n, P + 1], ABSENT where none: those that fit, the probe (pair 0) among them and once more behind."""
        n, pairs = sizes.shape
        fits = np.cumsum(sizes[:, 1:], axis=1) <= self.length - 2 * sizes[:, :1]
        count = fits.sum(1)
        probe = (draws.chances() * (count + 1)).astype(np.int64)  # as many pairs stand before it
        at = np.broadcast_to(np.arange(pairs + 1), (n, pairs + 1))
        order = np.where(at < probe[:, None], at + 1, at)  # pairs 1 ... probe, then probe + 1 ... one place later
        order = np.where((at == probe[:, None]) | (at == count[:, None] + 1), 0, order)
        return np.where(at <= count[:, None] + 1, order, ABSENT)

    def _pad(self, tokens: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens with holes [n, M] -> inputs and targets [n, T], without holes, to the right."""
        there = tokens != ABSENT
        place = self.length - there.sum(1, keepdims=True) + np.cumsum(there, axis=1) - 1
        row = np.nonzero(there)[0]
        inputs = np.full((len(tokens), self.length), self.pad)
        inputs[row, place[there]] = tokens[there]
        moved = np.zeros(inputs.shape, dtype=bool)
        moved[row, place[there]] = asked[there]
        return inputs, ask_next(inputs, moved)

    def learned(self, data: Examples) -> Tensor:
        """Padding is not predicted: there is nothing to learn in it."""
        following = super().learned(data)
        return torch.where(following == self.pad, IGNORE, following)

    def spell(self, token: int) -> str:
        return "-" if token == self.pad else f"k{token}" if token < self._keys else f"v{token - self._keys}"


def _cut(motifs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[n, P, motif] and [n, P] -> the motifs, ABSENT behind their sizes."""
    return np.where(np.arange(motifs.shape[-1]) < sizes[..., None], motifs, ABSENT)
