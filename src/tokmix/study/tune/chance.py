"""The figure that trials are compared by, and the chance level, which is the score of a diverged trial.

accuracy         the rate of the most frequent class of the split
pearson          0
loss             ln V nats a token: every token of the vocabulary equally likely
bits_per_byte    the same guess in bits, log2 V for each token, over the bytes of the text
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokmix.core.optional import np
from tokmix.runs.files import JsonObject
from tokmix.training.task import TrainingTask, main_figure


@dataclass(frozen=True)
class Figure:
    """`split`: valid, or the part of train that is held out. Never test: choosing the best of many trials on it would be unfair."""

    name: str
    higher: bool
    chance: float
    split: str

    def of(self, record: JsonObject) -> float:
        """The figure from the record of a run."""
        if self.split == "valid":
            return float(record["figures"][self.name])
        return float(record["selection"]["score"]) * (1 if self.higher else -1)


def figure_of(work: TrainingTask) -> Figure:
    if "valid" in work.files:
        split, rows, targets = "valid", None, work.files["valid"].targets
        size = work.card.split("valid").bytes if work.task == "lm" else None
    elif work.held is not None:
        split, rows, targets, size = "held out", work.held, work.files[work.held_split].targets, None
    else:
        raise ValueError(f"{work.files.folder} has no valid split and too little in train to hold out: nothing to compare trials by")
    name, sign = main_figure(work.task, {"bits_per_byte": 0.0} if size else {})
    return Figure(name, sign > 0, _chance(work, name, targets if rows is None or targets is None else targets[rows], size), split)


def _chance(work: TrainingTask, name: str, targets: np.ndarray | None, size: int | None) -> float:
    if name == "accuracy":
        assert targets is not None
        return float(np.bincount(np.asarray(targets)).max() / len(targets))
    if name in ("pearson", "micro_f1"):
        return 0.0
    vocab = work.config.vocab
    if size is None:
        return math.log(vocab)
    return math.log2(vocab) * work.card.split("valid").tokens / size
