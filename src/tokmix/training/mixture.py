"""What a model folder answers with: the network, the bag of words, or their weighted sum, whichever is best on held-out rows.

The sum is network * a + bag * b + c, with a, b >= 0 and c fitted on the held-out rows by the task's own loss: two or three numbers, a
convex problem. A probability of the sum is then calibrated on those rows too.

The three are compared by outputs for rows that a, b, c and the border of labels were not fitted on (five parts). Few rows tell figures
apart badly, so it is the sum, which errs less, unless one of the others is ahead of it by more than a standard error.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tokmix.core.optional import np
from tokmix.training import metrics

PENALTY = 0.1  # on the squares of the weights, as much as a tenth of a row
PARTS, DRAWS = 5, 100
NETWORK, BAG, BOTH = "network", "bag of words", "average of both"


@dataclass(frozen=True)
class Mixture:
    by: str = NETWORK
    network: float = 1.0
    bag: float = 0.0
    shift: float = 0.0
    held: dict[str, dict[str, float]] = field(default_factory=dict)  # name -> the figure on held-out rows and its interval
    rows: int = 0  # held out
    thresholds: list[float] = field(default_factory=list)  # of multilabel: a label is given from this probability on

    def outputs(self, network: np.ndarray, bag: np.ndarray | None) -> np.ndarray:
        if bag is None or self.by == NETWORK:
            return network
        return _sum((self.network, self.bag, self.shift), network, bag)

    def raised(self, outputs: np.ndarray) -> np.ndarray:
        """Logits of labels, shifted so that a label is given from 0 on."""
        if not self.thresholds:
            return outputs
        share = np.clip(np.asarray(self.thresholds, dtype=np.float64), 1e-6, 1 - 1e-6)
        return outputs - np.log(share / (1 - share))

    def record(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any] | None) -> Mixture:
        return cls(**record) if record else cls()

    def line(self, figure: str) -> str:
        """Which and why, for people."""
        shown = ", ".join(f"{name} {one['figure']:.4f} [{one['low']:.4f}, {one['high']:.4f}]" for name, one in self.held.items())
        highest = self.held[self.by]["figure"] == max(one["figure"] for one in self.held.values())
        why = f"best {figure}" if highest else f"{figure} within one standard error of the best"
        return f"the model answers by the {self.by}: {why} on {self.rows:,} held-out rows ({shown}; 95 % intervals)"


def choose(task: str, network: np.ndarray, bag: np.ndarray, targets: np.ndarray, balance: bool = False) -> Mixture:
    """The best of the three on these rows, by macro-F1 where classes are balanced."""
    fair = {name: np.empty(bag.shape) for name in (BOTH, NETWORK, BAG)}
    parts = np.random.default_rng(0).permutation(len(targets)) % PARTS
    for part in (parts == one for one in range(PARTS)) if len(targets) >= 2 * PARTS else [np.ones(len(targets), dtype=bool)]:
        rows = part if part.all() else ~part
        for name, weights in _sums(task, network[rows], bag[rows], targets[rows]).items():
            border = metrics.best_border(_sum(weights, network[rows], bag[rows]), targets[rows])[1] if task == "multilabel" else 0.0
            fair[name][part] = _sum(weights, network[part], bag[part]) - border
    held = {name: metrics.with_interval(task, fair[name], targets, balance) for name in (NETWORK, BAG, BOTH)}
    best = max(fair, key=lambda name: held[name]["figure"])
    if _as_good(task, fair[BOTH], fair[best], targets, balance):
        best = BOTH
    x, y, z = _sums(task, network, bag, targets)[best]
    cuts = thresholds(x * network + y * bag + z, targets) if task == "multilabel" else []
    return Mixture(best, x, y, z, held=held, rows=len(targets), thresholds=cuts)


def _sums(task: str, network: np.ndarray, bag: np.ndarray, targets: np.ndarray) -> dict[str, tuple[float, float, float]]:
    alone = _fit(task, np.zeros_like(bag), bag, targets)  # a bag's scores are no logits until they are scaled
    return {BOTH: _fit(task, network, bag, targets), NETWORK: (1.0, 0.0, 0.0), BAG: (0.0, alone[1] or 1.0, alone[2])}


def _sum(weights: tuple[float, float, float], network: np.ndarray, bag: np.ndarray) -> np.ndarray:
    return weights[0] * network + weights[1] * bag + weights[2]


def _as_good(task: str, outputs: np.ndarray, best: np.ndarray, targets: np.ndarray, balance: bool) -> bool:
    """Whether the best outputs are ahead by no more than a standard error, from rows drawn again."""
    if outputs is best:
        return True
    draw = np.random.default_rng(0)
    ahead = [metrics.figure(task, best, targets, balance) - metrics.figure(task, outputs, targets, balance)]
    for _ in range(DRAWS):
        rows = draw.integers(0, len(targets), len(targets))
        ahead.append(metrics.figure(task, best[rows], targets[rows], balance) - metrics.figure(task, outputs[rows], targets[rows], balance))
    return ahead[0] <= float(np.std(ahead[1:]))


def thresholds(logits: np.ndarray, targets: np.ndarray) -> list[float]:
    """The probability from which each label is given: one for all that has the best micro-F1 on these rows. One a label would fit
    their noise, as most labels are rare."""
    return [float(1 / (1 + np.exp(-metrics.best_border(logits, targets)[1])))] * logits.shape[1]


def _loss(task: str, outputs: np.ndarray, targets: np.ndarray) -> float:
    """The task's own, the mean over rows."""
    if task == "regress":
        return float(((outputs - targets) ** 2).mean()) / max(float(targets.std()), 1e-12) ** 2
    if task == "multilabel":
        return float(np.logaddexp(0, (1 - 2.0 * targets) * outputs).mean())
    top = outputs.max(-1, keepdims=True)
    return float((np.log(np.exp(outputs - top).sum(-1)) + top[:, 0] - outputs[np.arange(len(targets)), targets]).mean())


def _fit(task: str, network: np.ndarray, bag: np.ndarray, targets: np.ndarray) -> tuple[float, float, float]:
    from scipy.optimize import minimize

    network, bag = network.astype(np.float64), bag.astype(np.float64)
    free = (None, None) if task != "classify" else (0.0, 0.0)

    def penalised(w: np.ndarray) -> float:
        """Few rows that are told apart without a mistake would make the weights infinite."""
        return _loss(task, _sum((w[0], w[1], w[2]), network, bag), targets) + PENALTY * float(w[:2] @ w[:2]) / len(targets)

    found = minimize(penalised, np.array([0.5, 1.0, 0.0]), method="L-BFGS-B", bounds=[(0, None), (0, None), free])
    return float(found.x[0]), float(found.x[1]), float(found.x[2])
