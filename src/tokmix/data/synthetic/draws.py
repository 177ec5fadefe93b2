"""Random numbers as a function of (seed, index): row 7 of a seed does not depend on how many rows are made."""

from __future__ import annotations

from tokmix.core.optional import np
from tokmix.data.order import mix


class Draws:
    """Random numbers for an array of rows, one row for each element of the salts; equal salts draw the same.

    Every call draws anew, so the order of calls belongs to the definition of a task. Results have shape [*rows, *shape].
    """

    def __init__(self, *salts: int | np.ndarray):
        self._rows = mix(0, *salts)
        self._calls = 0

    def bits(self, *shape: int) -> np.ndarray:
        """uint64"""
        self._calls += 1
        rows = mix(self._rows, self._calls).reshape(*self._rows.shape, *(1 for _ in shape))
        return mix(np.arange(int(np.prod(shape))).reshape(shape), rows)

    def chances(self, *shape: int) -> np.ndarray:
        """Uniform in [0, 1)."""
        return (self.bits(*shape) >> np.uint64(11)) * 2.0**-53

    def below(self, high: int, *shape: int) -> np.ndarray:
        """Uniform in 0 ... high - 1."""
        return (self.bits(*shape) % np.uint64(high)).astype(np.int64)

    def distinct(self, count: int, high: int, *shape: int) -> np.ndarray:
        """`count` different numbers below `high`, in random order, along a last axis of their own (Floyd's method: no table of `high`)."""
        assert 0 < count <= high
        chosen = np.empty((*self._rows.shape, *shape, count), dtype=np.int64)
        for at in range(count):
            last = high - count + at
            drawn = self.below(last + 1, *shape)
            taken = (chosen[..., :at] == drawn[..., None]).any(-1)
            chosen[..., at] = np.where(taken, last, drawn)
        return np.take_along_axis(chosen, np.argsort(self.bits(*shape, count), axis=-1), axis=-1)

    def weighted(self, count: int, weights: np.ndarray) -> np.ndarray:
        """`count` different places of `weights`, drawn one after the other in proportion to what is left. [*rows, count]

        As a race: the place with weight w finishes after an exponential time of rate w.
        """
        assert 0 < count <= len(weights)
        times = -np.log1p(-self.chances(len(weights))) / weights
        return np.argsort(times, axis=-1)[..., :count]


def repeated(codes: np.ndarray) -> np.ndarray:
    """[n, P] -> [n, P] bool: whether the same number occurs earlier in its row."""
    order = np.argsort(codes, axis=1, kind="stable")
    ordered = np.take_along_axis(codes, order, axis=1)
    again = np.zeros(codes.shape, dtype=bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    found = np.empty_like(again)
    np.put_along_axis(found, order, again, axis=1)
    return found
