from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest

pytest.importorskip("numpy")

import numpy as np

from tokmix.training.ngram import bits_per_byte


def by_the_book(train: bytes, test: bytes, order: int) -> float:
    """Witten-Bell by dictionaries."""
    after: dict[bytes, Counter[int]] = defaultdict(Counter)
    for n in range(order):
        for place in range(n, len(train)):
            after[train[place - n : place]][train[place]] += 1

    def chance(history: bytes, byte: int) -> float:
        lower = 1 / 256 if not history else chance(history[1:], byte)
        known = after.get(history)
        return lower if known is None else (known[byte] + len(known) * lower) / (known.total() + len(known))

    # A history that was never seen says nothing, and neither does a longer one, which was not seen either.
    return -sum(math.log2(chance(test[max(0, t - order + 1) : t], byte)) for t, byte in enumerate(test)) / len(test)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_counts_as_by_the_book(order: int) -> None:
    draw = random.Random(order)
    train, test = (bytes(draw.choices(b"abcd \xff\x00", weights=[5, 4, 3, 2, 1, 1, 1], k=n)) for n in (300, 80))
    found = bits_per_byte(np.frombuffer(train, dtype=np.uint8), np.frombuffer(test + b"z", dtype=np.uint8), order)
    assert found == pytest.approx(by_the_book(train, test + b"z", order), rel=1e-12)


def test_a_text_that_repeats_costs_little_and_an_unknown_one_eight_bits() -> None:
    text = np.frombuffer(b"the same again and again, " * 200, dtype=np.uint8)
    assert bits_per_byte(text, text[:500]) < 0.3
    assert bits_per_byte(np.zeros(4, dtype=np.uint8), np.arange(256, dtype=np.uint8)) > 7.9
