"""Kind "bag": a linear model on the words of a table's rows, with numpy and torch alone: what a network has to be ahead of.

spec    data       the table's name                 dev      share of train that is held out, to choose the penalty by
        limit      tokens a row has at most         rows     at most so many rows of each split (small versions)
        penalties  of the squared weights

Features are words and pairs of neighbouring words of each text, and for pairs of texts the words that both have, hashed into one table;
weights are tf-idf, each row of length 1. The penalty is the best on the rows held out; then it learns from all of train.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reproduce import rows_data
from reproduce.claims import pack
from reproduce.job import Context
from tokmix.core.optional import np

BUCKETS, SEPARATOR, ROUNDS = 2**18, 102, 20
PRIME, SIDES = 1_000_003, 4


def features(row: np.ndarray, separator: int = SEPARATOR) -> np.ndarray:
    """Ids of one row, [CLS] a [SEP] or [CLS] a [SEP] b [SEP] -> the buckets of its features, each once."""
    ends = np.flatnonzero(row == separator)
    first, second = row[1 : ends[0] if len(ends) else None], row[ends[0] + 1 : ends[1] if len(ends) > 1 else None] if len(ends) else row[:0]
    found = [ids.astype(np.int64) * SIDES + side for side, ids in enumerate((first, second))]
    found += [(ids[:-1].astype(np.int64) * PRIME + ids[1:]) * SIDES + side for side, ids in enumerate((first, second))]
    found.append(np.intersect1d(first, second).astype(np.int64) * SIDES + 2)
    hashed = np.concatenate(found) * np.int64(2_654_435_761)
    return np.unique((hashed ^ (hashed >> 16)) % BUCKETS)


class Bag:
    """The rows of a split. idf: of the rows that are learned from."""

    def __init__(self, texts: rows_data.Texts, chosen: np.ndarray, limit: int):
        separator = int(texts.ids[texts.starts[1] - 1])  # every row ends with one, but for those that are cut here
        self.rows = [features(texts.ids[texts.starts[i] : texts.starts[i + 1]][:limit], separator) for i in chosen]
        self.labels = torch.from_numpy(texts.labels[chosen])

    def idf(self) -> np.ndarray:
        counts = np.bincount(np.concatenate(self.rows), minlength=BUCKETS)
        return np.where(counts > 1, np.log((1 + len(self.rows)) / (1 + counts)) + 1, 0.0)  # what one row alone has says nothing

    def weighted(self, idf: np.ndarray, device: torch.device) -> Weighted:
        starts = np.concatenate([[0], np.cumsum([len(row) for row in self.rows])])
        columns = np.concatenate(self.rows)
        values = idf[columns]
        norms = np.sqrt(np.add.reduceat(values**2, starts[:-1]))
        values = values / np.maximum(norms, 1e-9).repeat(np.diff(starts))
        return Weighted(*(torch.from_numpy(part).to(device) for part in (columns, starts[:-1], values.astype(np.float32))))


class Weighted(NamedTuple):
    """Rows of tf-idf: the buckets of all of them one after the other, where each row begins, and the weights."""

    columns: Tensor
    starts: Tensor
    values: Tensor

    def scores(self, theta: Tensor) -> Tensor:
        """[BUCKETS + 1, classes], the last row added to all -> [n, classes]"""
        return F.embedding_bag(self.columns, theta[:-1], self.starts, mode="sum", per_sample_weights=self.values) + theta[-1]

    def gather(self, rows: Tensor) -> Tensor:
        """The transpose of `scores`: [n, classes] -> [BUCKETS + 1, classes]"""
        theta = torch.zeros(BUCKETS + 1, rows.shape[1], device=rows.device, requires_grad=True)
        return torch.autograd.grad(self.scores(theta), theta, rows)[0]


def fit(x: Weighted, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Logistic regression by Newton's method, each step by conjugate gradients -> weights [BUCKETS, classes], bias [classes].

    The bias stands in the last row of theta [BUCKETS + 1, classes]. Its penalty is next to none, but not zero: the loss does not change
    where all classes gain the same, and rounding alone must not move them.
    """
    rows = len(labels)
    wanted = F.one_hot(labels, classes).float()
    theta = torch.zeros(BUCKETS + 1, classes, device=labels.device)
    shrunk = torch.full((BUCKETS + 1, 1), 2 * penalty, device=labels.device)
    shrunk[-1] = 1e-6
    loss = lambda theta: F.cross_entropy(x.scores(theta), labels) + (shrunk * theta.square()).sum() / 2
    for _ in range(ROUNDS):
        said = x.scores(theta).softmax(1)
        slope = x.gather((said - wanted) / rows) + shrunk * theta

        def curved(v: Tensor, said: Tensor = said) -> Tensor:
            """The loss's second derivative times v."""
            moved = x.scores(v) * said
            return x.gather((moved - said * moved.sum(1, keepdim=True)) / rows) + shrunk * v

        step, before = conjugate_gradients(curved, slope), loss(theta)
        length = 1.0
        while (after := loss(theta - length * step)) >= before and length > 1e-4:
            length /= 2
        if not after < before:  # as near as float32 comes
            break
        theta = theta - length * step
        if before - after < 1e-6 * before:
            break
    return theta[:-1], theta[-1]


def conjugate_gradients(times: Callable[[Tensor], Tensor], wanted: Tensor, most: int = 30, near: float = 0.01) -> Tensor:
    """v with times(v) near `wanted`; times: a symmetric matrix, positive definite."""
    found, left, way = torch.zeros_like(wanted), wanted, wanted
    square = first = wanted.square().sum()
    for _ in range(most):
        turned = times(way)
        bend = (way * turned).sum()
        if not bend > 0:
            break
        length = square / bend
        found, left = found + length * way, left - length * turned
        square, last = left.square().sum(), square
        if square <= near**2 * first:
            break
        way = left + square / last * way
    return found


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    table, most, device = rows_data.load(context.data_folder(), spec["data"]), spec.get("rows"), context.device
    learned, aside = rows_data.held_out(table.train, spec["dev"])
    split = lambda texts, chosen: Bag(texts, chosen[:most], spec["limit"])
    train, dev = split(table.train, learned), split(table.train, aside)
    classes, found = len(table.labels), []
    for penalty in spec["penalties"]:
        found.append((float(_right(train, dev, classes, penalty, device).mean()), -penalty))
        context.say(f"{spec['data']}: penalty {penalty:g} gives {found[-1][0]:.4f} on held-out rows")
    penalty = -max(found)[1]
    whole = split(table.train, np.arange(len(table.train)))
    run: dict[str, Any] = {"seed": 0, "state": "finished", "penalty": penalty, "dev": max(found)[0]}
    right = _right(whole, split(table.valid, np.arange(len(table.valid))), classes, penalty, device)
    run |= {"score": float(right.mean()), "right": pack(right), "examples": len(right)}
    if table.test is not None:
        right = _right(whole, split(table.test, np.arange(len(table.test))), classes, penalty, device)
        run |= {"test": float(right.mean()), "test_right": pack(right), "test_examples": len(right)}
    return {"runs": [run], "data": table.sources, "parameters": (BUCKETS + 1) * classes}


def _right(train: Bag, scored: Bag, classes: int, penalty: float, device: torch.device) -> np.ndarray:
    idf = train.idf()
    weight, bias = fit(train.weighted(idf, device), train.labels.to(device), classes, penalty)
    said = scored.weighted(idf, device).scores(torch.cat([weight, bias[None]])).argmax(1).cpu()
    return (said == scored.labels).numpy()
