"""How many seeds the claims of the language models need: `python -m reproduce.fair.power`.

The standard deviation over seeds of a difference of two systems comes from committed runs, whose seeds are paired. With it, and Holm's
correction at its strictest, the smallest difference that so many seeds find with a probability of four in five."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from reproduce import page, results
from reproduce.claims import by_seed
from reproduce.item import Outcomes

CLAIMS, ALPHA, POWER = 4, 0.05, 0.8
SEEDS = (3, 5, 8, 10)
RESULTS = Path(__file__).parents[1]
# What is compared -> (results file, the jobs of the two systems): of the first edition, as near to each claim as there is.
PAIRS = {
    "(ab, rotary attention) and rotary attention": ("hsm/results/hybrids.json", "ab-attention-rotary-true-4", "attention-rotary-true-8"),
    "(a,b) and (a,b) with all shifts in each layer": ("hsm/results/hybrids.json", "ab-8", "vector-heads-8-8"),
    "HyperGLU and softmax + rotary + conv": ("hypermlp/results/lm.json", "hyperglu-6", "attention-rotary-true-conv-4-6"),
}


def deviation(outcomes: Outcomes, ours: str, theirs: str) -> tuple[float, int]:
    """Of the difference of the losses, over the seeds that both have."""
    a, b = (by_seed(page.runs(outcomes.get(key))) for key in (ours, theirs))
    seeds = sorted(set(a) & set(b))
    return statistics.stdev([a[seed]["score"] - b[seed]["score"] for seed in seeds]), len(seeds)


def detectable(sd: float, seeds: int) -> float:
    """By the noncentral t distribution."""
    from scipy import stats

    freedom = seeds - 1
    bound = stats.t.ppf(1 - ALPHA / CLAIMS / 2, freedom)
    found = lambda effect: 1 - stats.nct.cdf(bound, freedom, effect * math.sqrt(seeds))
    low, high = 0.0, 1.0
    while found(high) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= POWER else (middle, high)
    return high * sd


def table() -> str:
    rows = []
    for title, (file, ours, theirs) in PAIRS.items():
        sd, known = deviation(results.outcomes(results.load(RESULTS / file)), ours, theirs)
        rows.append([title, f"{sd:.4f} ({known} seeds)", *(f"{detectable(sd, seeds):.3f}" for seeds in SEEDS)])
    return page.table(["pair", "deviation of the difference, nats", *(f"found with {seeds} seeds" for seeds in SEEDS)], rows)


if __name__ == "__main__":
    print(table())
