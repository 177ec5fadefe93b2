"""A linear head on an encoder that stays as it is: what `train --from ENCODER` does where there is no time to fine-tune it.

    rows ─> encoder, once ─> pooled features ─> logistic regression, or ridge for scores ─> the head of an ordinary model

The weight of the penalty is chosen on the held-out rows. What is saved is a model like any other: its head is the regression's.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.prepare.targets import LABELLED
from tokmix.training import linear, linear_search
from tokmix.training.answers import network_outputs
from tokmix.training.defaults import is_pair
from tokmix.training.engine import Engine
from tokmix.training.report import Log, clock
from tokmix.training.run_record import Choices
from tokmix.training.task import TrainingTask

EPOCHS = 2  # fine-tuning that reads the rows less often than this learns less than a linear head does
PENALTIES = {"classify": (0.003, 0.03, 0.3), "multilabel": (0.003, 0.03, 0.3), "regress": (1e-4, 1e-3, 1e-2)}  # C, smaller is stronger
ITERATIONS = 100  # of the solver, at most
ABSENT = -20.0  # score of a class without a row


@dataclass
class Head:
    weights: np.ndarray  # [classes, features], of the features as they are
    bias: np.ndarray  # [classes]
    penalty: float

    def scores(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(features @ self.weights.T + self.bias)


class Pooled(nn.Module):
    """What a model's head reads of each row."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, segments: Segments | None = None) -> Tensor:
        return self.model.pool(self.model.hidden(ids, segments), segments)


def check(work: TrainingTask) -> None:
    """train.freeze where it cannot be."""
    if work.train.freeze != "yes":
        return
    if work.start is None:
        raise ValueError("train.freeze=yes keeps an encoder as it is, and there is none: name one with --from")
    if why := unfit(work):
        raise ValueError(f"train.freeze=yes: {why}; leave it out")


def unfit(work: TrainingTask) -> str | None:
    """Why a linear head is not for this task, in a few words."""
    if work.task not in LABELLED:
        return f"a linear head tells classes or scores, and this is {work.task}"
    if is_pair(work.card):
        return "the two texts of a pair are compared by layers that have to be trained"
    return None if linear.available() else "scikit-learn is not installed (pip install 'tokmix[lab]')"


def wanted(engine: Engine, chosen: Choices, usual: float | None, spent: float, say: Callable[[str], None]) -> bool:
    """Whether this run keeps its encoder frozen, chosen once. usual: seconds of the whole run without --minutes, None for as long as it
    takes; spent: of them so far."""
    work, train = engine.work, engine.train
    seconds = usual if train.minutes is None else 60 * train.minutes
    if work.start is None or engine.world.size > 1 or train.freeze == "no" or unfit(work):
        return False
    if train.freeze == "yes":
        say("the encoder stays frozen, as asked: a linear head on its features")
        return True
    said = train.epochs or train.steps
    if "frozen" not in chosen.known:
        needed = 0.0
        if not said and seconds is not None:
            needed = EPOCHS * engine.estimate_pace() * engine.batches.steps(0) / engine.growth.mean()
        frozen = seconds is not None and needed > seconds - spent
        chosen.set("frozen", frozen)
        if not said and seconds is not None:
            left = f"{EPOCHS} epochs of fine-tuning would take about {clock(needed)}, and there are {clock(max(seconds - spent, 0))}"
            say(f"{'the encoder stays frozen' if frozen else 'the encoder is fine-tuned'}: {left} (--train.freeze yes|no decides)")
    return bool(chosen.known["frozen"])


def fit(engine: Engine, log: Log, say: Callable[[str], None]) -> None:
    """The model's head, from features of the rows that are kept and of those held out."""
    work, began = engine.work, time.monotonic()
    log.open(0)
    work.frozen = True
    engine.meter.start()
    features, targets = _features(engine, "train", work.kept)
    held = None if work.held is None else _features(engine, work.held_split, work.held)
    took = time.monotonic() - began
    weights = work.files["train"].weights
    rows = None if weights is None else np.asarray(weights if work.kept is None else weights[np.sort(work.kept)], dtype=np.float64)
    head, tried = search(work.task, features, targets, len(work.card.labels), held, rows, work.train.balance)
    _put(engine, head)
    progress = engine.progress
    progress.total, progress.epoch, progress.seconds = 0, 1, time.monotonic() - began
    engine.meter.stop()
    progress.measured = engine.meter.totals()
    told = ", ".join(f"{value:.4f} at {penalty:g}" for penalty, value in tried)
    chosen = f" (held-out rows: {told})" if told else ""
    say(f"features of {len(features):,} rows in {clock(took)}; a linear head with C {head.penalty:g}{chosen}")
    if held is not None:
        figures = work.evaluate(engine.model, work.batches(work.held_split, engine.world, work.held), engine.world)
        shown = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
        progress.best_score = work.score(figures)
        progress.history.append({"step": 0, "epoch": 1, "best": 0, **shown})
        engine.log({"step": 0, "total": 0, "epoch": 1, "held": shown})
    log.close()


def _features(engine: Engine, split: str, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """([rows, width], targets)"""
    return network_outputs(Pooled(engine.model), engine.work.batches(split, engine.world, rows), engine.world)


@torch.no_grad()
def _put(engine: Engine, head: Head) -> None:
    if engine.scaler is not None:  # the regression tells scores as they are
        engine.scaler.fold()
    layer = engine.model.head
    assert isinstance(layer, nn.Linear)
    layer.weight.copy_(torch.from_numpy(head.weights))
    layer.bias.copy_(torch.from_numpy(head.bias))


def search(
    task: str,
    features: np.ndarray,
    targets: np.ndarray,
    classes: int,
    held: tuple[np.ndarray, np.ndarray] | None,
    weights: np.ndarray | None = None,
    balance: bool = False,
) -> tuple[Head, list[tuple[float, float]]]:
    """-> (the best head on the held-out rows, each penalty tried and how good it was)"""
    penalties: Sequence[float] = PENALTIES[task] if held is not None else PENALTIES[task][1:2]
    tried: list[tuple[float, float]] = []
    best: tuple[float, Head | None] = (float("-inf"), None)
    for penalty in penalties:
        head = solve(task, features, targets, classes, penalty, weights, balance)
        score = 0.0
        if held is not None:
            scores = head.scores(held[0])
            score = linear_search.quality(task, scores[:, 0] if task == "regress" else scores, held[1])
            tried.append((penalty, score))
        if score > best[0]:
            best = (score, head)
    assert best[1] is not None
    return best[1], tried


def solve(
    task: str, features: np.ndarray, targets: np.ndarray, classes: int, penalty: float, weights: np.ndarray | None, balance: bool
) -> Head:
    """On features of mean 0 and deviation 1; the scaling becomes a part of the weights."""
    from sklearn.linear_model import LogisticRegression, Ridge

    mean, deviation = features.mean(0), features.std(0) + 1e-6
    scaled = (features - mean) / deviation
    if task == "regress":
        solved = Ridge(alpha=1 / penalty).fit(scaled, targets, sample_weight=weights)
        found, bias = np.atleast_2d(solved.coef_), np.atleast_1d(solved.intercept_)
    else:
        columns = [targets[:, k] for k in range(classes)] if task == "multilabel" else [targets]
        found, bias = np.zeros((classes, features.shape[1])), np.full(classes, ABSENT)
        for place, column in enumerate(columns):
            known = np.unique(column)
            rows = [place] if task == "multilabel" else known.astype(int)
            if len(known) < 2:
                bias[rows] = 0.0 if task == "classify" else ABSENT * (1 - 2 * float(known[0]))
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a little before the optimum is as good
                model = LogisticRegression(C=penalty, max_iter=ITERATIONS, class_weight="balanced" if balance else None)
                model.fit(scaled, column, sample_weight=weights)
            two = task == "classify" and len(known) == 2  # one plane for both
            found[rows] = np.concatenate([-model.coef_, model.coef_]) / 2 if two else model.coef_
            bias[rows] = np.concatenate([-model.intercept_, model.intercept_]) / 2 if two else model.intercept_
    found = found / deviation
    return Head(found.astype(np.float32), (bias - found @ mean).astype(np.float32), penalty)
