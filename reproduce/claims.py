"""Whether an ordering that a paper claims holds in our runs.

A claim says that one system is better than another. Its runs are paired by seed, and asked twice:
    t          over seeds: Student's t-test on the differences
    examples   over examples: the paired bootstrap, where every run says which examples it got right
Both p-values are two-sided and corrected after Holm over the claims that are judged together. A claim

    holds            the difference has the claimed sign, and each test that could be made gives p <= 0.05
    does not hold    the same with the other sign
    unclear          everything else: the runs do not decide it
    not run          one of the two has no scores
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tokmix.core.optional import np
from tokmix.study.statistics import holm, interval, paired_t

SURE = 0.05
Key = TypeVar("Key")
Run = Mapping[str, Any]  # of an outcome's "runs": seed, score, state, and where it is known "right" (pack) and "examples"


def pack(right: np.ndarray) -> str:
    """Which examples were right, [n] of bool, as text for a results file; n stands beside it as "examples"."""
    return base64.b64encode(np.packbits(np.asarray(right, dtype=bool)).tobytes()).decode("ascii")


def unpack(packed: str, examples: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), dtype=np.uint8))
    if not 0 <= len(bits) - examples < 8:
        raise ValueError(f"'right' holds {len(bits)} bits, which does not fit {examples} examples")
    return bits[:examples].astype(bool)


@dataclass(frozen=True)
class Claim:
    """better  runs of the system that is claimed to be better, worse those of the other
    higher  a higher score is better
    margin  how far `better` may stay behind: "comes close to" is a claim with a margin, "is ahead by" one with a negative margin
    """

    says: str
    better: Sequence[Run]
    worse: Sequence[Run]
    higher: bool = True
    margin: float = 0.0
    field: str = "score"


@dataclass(frozen=True)
class Verdict:
    says: str
    word: str
    difference: float | None = None  # of the means over the seeds that both have, positive where `better` is better; without margin
    seeds: int = 0
    t: float | None = None  # p-values, corrected
    examples: float | None = None
    interval: tuple[float, float] | None = None  # 95 %, of the difference over seeds; not corrected


_recorded: ContextVar[list[Verdict] | None] = ContextVar("recorded verdicts", default=None)


@contextmanager
def recorded() -> Iterator[list[Verdict]]:
    """Every verdict that is given inside, in order: what a table says, as data."""
    found: list[Verdict] = []
    token = _recorded.set(found)
    try:
        yield found
    finally:
        _recorded.reset(token)


def record(verdicts: Sequence[Verdict]) -> list[Verdict]:
    if (found := _recorded.get()) is not None:
        found.extend(verdicts)
    return list(verdicts)


def by_interval(says: str, difference: float, bounds: tuple[float, float], seeds: int = 0) -> Verdict:
    """A verdict from a bootstrap interval alone: it holds where the interval lies above zero."""
    word = "holds" if bounds[0] > 0 else "does not hold" if bounds[1] < 0 else "unclear"
    return Verdict(says, word, difference, seeds, interval=bounds)


def judge(claims: Sequence[Claim]) -> list[Verdict]:
    """Verdicts on claims that stand together: Holm's correction counts them."""
    asked = [_ask(claim) for claim in claims]
    t, examples = holm([one.t for one in asked]), holm([one.examples for one in asked])
    return record([
        replace(one, word=_word(one, claim.margin, t[i], examples[i]), t=t[i], examples=examples[i])
        for i, (claim, one) in enumerate(zip(claims, asked, strict=True))
    ])  # fmt: skip


def _word(asked: Verdict, margin: float, *values: float | None) -> str:
    if asked.difference is None:
        return "not run"
    known = [value for value in values if value is not None]
    if not known or max(known) > SURE:
        return "unclear"
    return "holds" if asked.difference + margin > 0 else "does not hold"


def _ask(claim: Claim) -> Verdict:
    """With p-values as they are, before the correction."""
    better, worse = by_seed(claim.better, claim.field), by_seed(claim.worse, claim.field)
    seeds = sorted(set(better) & set(worse))
    if not seeds:
        return Verdict(claim.says, "not run")
    sign = 1.0 if claim.higher else -1.0
    ahead = [sign * (better[seed][claim.field] - worse[seed][claim.field]) for seed in seeds]
    t = paired_t([one + claim.margin for one in ahead], [0.0] * len(ahead))
    examples = None
    if claim.field == "score" and claim.higher and all("right" in side[seed] for side in (better, worse) for seed in seeds):
        examples = over_examples([(bits(better[seed]), bits(worse[seed])) for seed in seeds], claim.margin)
    return Verdict(claim.says, "", math.fsum(ahead) / len(ahead), len(seeds), t, examples, interval(ahead))


def by_seed(runs: Sequence[Run], field: str = "score") -> dict[int, Run]:
    """The runs that have a score; one that diverged has one, its own or chance."""
    return {run["seed"]: run for run in runs if run.get("state") != "failed" and _number(run.get(field))}


def midpoint(a: Sequence[Run], b: Sequence[Run]) -> list[Run]:
    """Half of the way from one system to another, seed by seed: what brings more than half of a gain is ahead of it."""
    ours, theirs = by_seed(a), by_seed(b)
    both = sorted(set(ours) & set(theirs))
    return [{"seed": seed, "score": (ours[seed]["score"] + theirs[seed]["score"]) / 2, "state": "finished"} for seed in both]


def common_means(runs: Mapping[Key, Sequence[Run]]) -> dict[Key, float]:
    """The mean score of each over the seeds that all have: a row with more seeds than another is not ranked by them."""
    scored = {key: by_seed(of) for key, of in runs.items()}
    seeds = set.intersection(*(set(of) for of in scored.values())) if scored else set()
    return {key: math.fsum(of[seed]["score"] for seed in seeds) / len(seeds) for key, of in scored.items()} if seeds else {}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def bits(run: Run) -> np.ndarray:
    return unpack(run["right"], run["examples"])


def over_examples(pairs: Sequence[tuple[np.ndarray, np.ndarray]], margin: float = 0.0) -> float | None:
    """Paired bootstrap p-value over examples, the seeds as they are. pairs: (better [n], worse [n]) of each seed, right or not.

    What an example adds to the difference is a whole number k, right minus wrong counted over seeds, so the sum over n drawn
    examples has a distribution that can be computed: the n-fold convolution of k's. That is the limit of infinitely many
    resamples, and the same number on every machine. None where there is no example."""
    k = np.sum([a.astype(np.int64) - b.astype(np.int64) for a, b in pairs], axis=0)  # [n]
    n, most = len(k), len(pairs)
    if n == 0:
        return None
    size = 2 * n * most + 1  # sums from -n * most to n * most
    chance = np.zeros(size)
    values, counts = np.unique(k, return_counts=True)
    chance[values % size] = counts / n
    sums = np.fft.irfft(np.fft.rfft(chance) ** n, size)
    at = np.arange(size)
    at[at > n * most] -= size
    observed = int(k.sum())
    shifted = abs(observed + margin * n * most)
    return float(min(1.0, max(0.0, sums[np.abs(at - observed) >= shifted * (1 - 1e-12)].sum())))
