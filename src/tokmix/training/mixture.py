"""What a model folder answers with: the network, the bag of words, or their weighted sum, whichever is best on held-out rows.

The sum is network * a + bag * b + c, with a, b >= 0 and c fitted on the held-out rows by the task's own loss: two or three numbers, a
convex problem. A probability of the sum is then calibrated on those rows too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tokmix.core.optional import np
from tokmix.training import metrics

PENALTY = 0.1  # on the squares of the weights, as much as a tenth of a row
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
        return self.network * network + self.bag * bag + self.shift

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
        return f"the model answers by the {self.by}: best {figure} on {self.rows:,} held-out rows ({shown}; 95 % intervals)"


def choose(task: str, network: np.ndarray, bag: np.ndarray, targets: np.ndarray, balance: bool = False) -> Mixture:
    """The best of the three on these rows, by macro-F1 where classes are balanced. Where figures are equal it is the sum, which errs
    less on rows it has not seen."""
    a, b, c = _fit(task, network, bag, targets)
    alone = _fit(task, np.zeros_like(bag), bag, targets)  # a bag's scores are no logits until they are scaled
    sums = {NETWORK: (1.0, 0.0, 0.0), BAG: (0.0, alone[1] or 1.0, alone[2]), BOTH: (a, b, c)}
    held = {name: metrics.with_interval(task, x * network + y * bag + z, targets, balance) for name, (x, y, z) in sums.items()}
    best = max((BOTH, NETWORK, BAG), key=lambda name: held[name]["figure"])
    x, y, z = sums[best]
    cuts = thresholds(x * network + y * bag + z, targets) if task == "multilabel" else []
    return Mixture(best, x, y, z, held=held, rows=len(targets), thresholds=cuts)


def thresholds(logits: np.ndarray, targets: np.ndarray) -> list[float]:
    """The probability from which each label is given: one for all that has the best micro-F1 on these rows. One a label would fit
    their noise, as most labels are rare."""
    chances = 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
    shares = np.linspace(0.05, 0.95, 37)
    f1 = [2 * (targets * (chances >= share)).sum() / max((chances >= share).sum() + targets.sum(), 1) for share in shares]
    return [float(shares[int(np.argmax(f1))])] * logits.shape[1]


def _fit(task: str, network: np.ndarray, bag: np.ndarray, targets: np.ndarray) -> tuple[float, float, float]:
    from scipy.optimize import minimize

    if task == "regress":
        one = np.stack([network, bag, np.ones_like(bag)], 1).astype(np.float64)
        scale = max(float(targets.std()), 1e-12)
        loss = lambda w: float((((one @ w - targets) / scale) ** 2).mean())
    elif task == "multilabel":
        sign = 2.0 * targets - 1

        def loss(w: np.ndarray) -> float:
            return float(np.logaddexp(0, -sign * (w[0] * network + w[1] * bag + w[2])).mean())
    else:
        rows = np.arange(len(targets))

        def loss(w: np.ndarray) -> float:
            logits = w[0] * network + w[1] * bag
            top = logits.max(-1, keepdims=True)
            return float((np.log(np.exp(logits - top).sum(-1)) + top[:, 0] - logits[rows, targets]).mean())

    free = (None, None) if task != "classify" else (0.0, 0.0)

    def penalised(w: np.ndarray) -> float:
        """Few rows that are told apart without a mistake would make the weights infinite."""
        return loss(w) + PENALTY * float(w[:2] @ w[:2]) / len(targets)

    found = minimize(penalised, np.array([0.5, 1.0, 0.0]), method="L-BFGS-B", bounds=[(0, None), (0, None), free])
    return float(found.x[0]), float(found.x[1]), float(found.x[2])
