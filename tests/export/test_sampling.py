"""The next token in numpy: any temperature above 0 gives a token, also the smallest."""

from __future__ import annotations

import numpy as np
import pytest

from tokmix.runtime.sampling import Sampling, choose


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-40, 1e-3])
@pytest.mark.parametrize("spread", [1.0, 1e5])
def test_the_smallest_temperatures_take_the_likeliest_token(temperature: float, spread: float) -> None:
    logits = (spread * np.array([0.0, 3.0, -2.0, 1.0])).astype(np.float32)
    for seed in range(3):
        assert choose(logits, Sampling(temperature=temperature), np.random.default_rng(seed)) == 1


def test_tokens_are_drawn_by_their_probabilities() -> None:
    draws = np.random.default_rng(0)
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    drawn = [choose(logits, Sampling(temperature=1.0), draws) for _ in range(4000)]
    assert np.bincount(drawn, minlength=3) / 4000 == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    assert {choose(logits, Sampling(temperature=1.0, top_k=1), draws) for _ in range(20)} == {0}
