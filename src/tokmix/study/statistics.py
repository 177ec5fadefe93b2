"""Tests on paired scores of two systems, and Holm's correction for many tests.

paired_t       over seeds: do the differences between two systems, seed by seed, have mean zero?
Bootstrap      over examples, with the given seeds: would another test set of this size give the same result?
               over seeds and examples: would other seeds and another test set?
holm           p-values of several tests, such that the chance of any false alarm among them stays below the level
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tokmix.core.optional import np

Figure = Callable[["np.ndarray"], "np.ndarray"]  # sums of the examples' statistics [..., k] -> figures [...]
RESAMPLES = 10_000
CHUNK = 2**22  # examples drawn at a time: bounds memory


def paired_t(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p-value of Student's t-test on a - b; 1 where a and b are equal. None for fewer than two pairs, and if all
    differences are equal: that happens by chance on small test sets, and the formula would give p = 0."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} scores cannot be paired with {len(b)}")
    n = len(a)
    if n < 2:
        return None
    differences = [x - y for x, y in zip(a, b, strict=True)]
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    if math.sqrt(variance) <= 1e-12 * max(map(abs, [*a, *b])):  # up to rounding
        return 1.0 if not any(differences) else None
    return student_tail(mean * math.sqrt(n / variance), n - 1)


def student_tail(t: float, freedom: int) -> float:
    """P(|T| >= |t|) for Student's T."""
    from scipy.stats import t as student

    return float(2 * student.sf(abs(t), freedom))


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's confidence interval of the mean. None for fewer than two values, and if all are equal."""
    from scipy.stats import t as student

    n = len(differences)
    if n < 2:
        return None
    mean = math.fsum(differences) / n
    error = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    reach = float(student.ppf((1 + level) / 2, n - 1)) * error
    return (mean - reach, mean + reach) if reach else None


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm (1979): the i-th smallest of m p-values is multiplied by m - i + 1, and is never below a smaller one. None is ignored."""
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for i, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - i) * value))
        corrected[place] = largest
    return corrected


class Bootstrap:
    """Figures of several systems on test sets that are resampled with replacement.

    sums    [systems, seeds, examples, k]: what each example adds to k sums, such as (right or not, 1)
    figure  those sums -> the figure, such as right / number. It need not be a mean of examples: a correlation is one too.

    A draw takes the same examples for every system and every seed, so differences between systems are paired. The draws are
    a function of `seed` and the number of examples alone.
    """

    def __init__(self, sums: np.ndarray, figure: Figure, draws: int = RESAMPLES, seed: int = 0):
        systems, seeds, examples, k = sums.shape
        if examples < 1 or seeds < 1:
            raise ValueError(f"nothing to draw from: {seeds} seeds, {examples} examples")
        self.seed, self.draws = seed, draws
        self.observed = figure(sums.sum(2))  # [systems, seeds]
        columns = np.ascontiguousarray(np.moveaxis(sums, 2, 0)).reshape(examples, -1)
        with np.errstate(invalid="ignore"):  # a failed run has NaN sums, and is never used
            drawn = [figure((counts @ columns).reshape(-1, systems, seeds, k)) for counts in self._counts(examples)]
        self.drawn = np.concatenate(drawn)  # [draws, systems, seeds]

    def _counts(self, examples: int) -> Iterator[np.ndarray]:
        """[some draws, examples]: how often each example was drawn."""
        chance, step = np.random.default_rng(self.seed), max(1, CHUNK // examples)
        for start in range(0, self.draws, step):
            picked = chance.integers(examples, size=(min(step, self.draws - start), examples), dtype=np.int32)
            counts = np.empty(picked.shape)
            for row, line in zip(picked, counts, strict=True):
                line[:] = np.bincount(row, minlength=examples)
            yield counts

    def over_examples(self, a: int, b: int, seeds: Sequence[int]) -> float | None:
        """Two-sided p-value of a against b, on the mean over these seeds."""
        chosen = list(seeds)
        observed = (self.observed[a, chosen] - self.observed[b, chosen]).mean()
        drawn = (self.drawn[:, a, chosen] - self.drawn[:, b, chosen]).mean(-1)
        return p_value(float(observed), drawn)

    def over_both(self, a: int, b: int, seeds: Sequence[int]) -> float | None:
        """The same, but each draw also resamples the seeds, the same for both systems. None for one seed.

        Resampling S seeds gives a spread that is too small by sqrt((S - 1) / S), which matters for small S: the part of the difference
        that comes from the seeds is scaled up by the inverse."""
        chosen = np.array(seeds)
        if len(chosen) < 2:
            return None
        observed = (self.observed[a, chosen] - self.observed[b, chosen]).mean()
        chance = np.random.default_rng((self.seed, len(chosen)))
        taken = chosen[chance.integers(len(chosen), size=(self.draws, len(chosen)))]  # [draws, seeds]
        differences = self.drawn[:, a] - self.drawn[:, b]  # [draws, all seeds]
        unmoved, moved = differences[:, chosen].mean(1), np.take_along_axis(differences, taken, 1).mean(1)
        return p_value(float(observed), unmoved + (moved - unmoved) * math.sqrt(len(chosen) / (len(chosen) - 1)))


def p_value(observed: float, drawn: np.ndarray) -> float | None:
    """The drawn differences lie around the observed one as they would around zero if there were none: the share of draws that
    are as far from the observed difference as it is from zero. One is added above and below: chance never says 0. None where
    a figure is no number."""
    if not math.isfinite(observed) or not np.isfinite(drawn).all():
        return None
    far = np.abs(drawn - observed) >= abs(observed) * (1 - 1e-12)  # equal up to rounding counts as equally far
    return float((far.sum() + 1) / (len(drawn) + 1))
