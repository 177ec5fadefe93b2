"""The next token from its logits, in numpy. Each text has its own random stream, so the other texts of the batch do not matter."""

from __future__ import annotations

from dataclasses import dataclass

from tokmix.core.optional import np


@dataclass(frozen=True)
class Sampling:
    """temperature  0 takes the likeliest token (greedy); above, samples from the softmax of logits / temperature
    top_k        among the k likeliest; top_p: among the fewest whose probabilities reach p
    seed         of the draws; None: a fresh one
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature!r} should be 0 (greedy) or a finite number above it")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k!r} should be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} should be above 0 and at most 1")


def choose(logits: np.ndarray, sampling: Sampling, draws: np.random.Generator) -> int:
    """logits [vocab] -> an id"""
    if sampling.temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k is not None:
        order = order[: sampling.top_k]
    # From the likeliest down, in double: the smallest temperatures must not give infinity or 0 / 0.
    scores = logits[order].astype(np.float64)
    with np.errstate(over="ignore"):  # minus infinity is a probability of 0
        chances = np.exp((scores - scores[0]) / sampling.temperature)
    chances /= chances.sum()
    if sampling.top_p is not None:
        chances = np.where(chances.cumsum() - chances < sampling.top_p, chances, 0)
    total = chances.cumsum()
    place = int(np.searchsorted(total, draws.random() * total[-1], side="right"))
    return int(order[min(place, int((chances > 0).sum()) - 1)])  # rounding must not pick a token of probability zero
