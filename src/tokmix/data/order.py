"""Random numbers without state: hashes, and a shuffle that computes its i-th element without a list.

Everything random about data is a function of (seed, epoch, place), so a run resumes anywhere without replaying anything,
and a corpus of any size is shuffled in constant memory.
"""

from __future__ import annotations

from tokmix.core.optional import np

_GOLDEN = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1


def mix(values: np.ndarray | int, *salts: int | np.ndarray) -> np.ndarray:
    """uint64 hash of each value under the salts, one for all or one for each (the finaliser of splitmix64: Steele, Lea, Flood 2014)."""
    x: np.ndarray = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for salt in (0, *salts):
            x = x + (_odd(salt) * np.uint64(_GOLDEN))
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return x


def _odd(salt: int | np.ndarray) -> np.ndarray:
    """2 salt + 1, modulo 2^64: a salt may be any whole number."""
    whole = np.uint64(salt & (2**64 - 1)) if isinstance(salt, int) else salt.astype(np.uint64)
    return np.asarray(whole * np.uint64(2) + np.uint64(1))


def number(*salts: int) -> int:
    """One hash of some whole numbers, as a Python integer."""
    x = 0
    for salt in (0, *salts):  # `mix` of one number: Python counts faster than numpy starts
        x = x + (2 * salt + 1) * _GOLDEN & _ALL
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _ALL
        x = (x ^ x >> 27) * 0x94D049BB133111EB & _ALL
        x ^= x >> 31
    return x


class Shuffle:
    """A permutation of range(n), chosen by the salts: a Feistel network on the next even power of two, repeated until in range."""

    ROUNDS = 6

    def __init__(self, n: int, *salts: int):
        assert n >= 0
        self.n, self.salts = n, salts
        self.half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)  # bits of each half

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The elements at these places of the shuffle. [K] -> [K], both int64 in range(n)"""
        x = np.asarray(places, dtype=np.uint64)
        assert x.size == 0 or int(x.max()) < self.n
        x = self._scramble(x)
        while (outside := x >= np.uint64(self.n)).any():
            x[outside] = self._scramble(x[outside])
        return x.astype(np.int64)

    def _scramble(self, x: np.ndarray) -> np.ndarray:
        half, low = np.uint64(self.half), np.uint64(2**self.half - 1)
        left, right = x >> half, x & low
        for i in range(self.ROUNDS):
            left, right = right, left ^ (mix(right, *self.salts, i) & low)
        return (left << half) | right
