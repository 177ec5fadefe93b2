"""Kind "bag": a linear model on the words of a table's rows, with numpy and torch alone: what a network has to be ahead of.

spec    data       the table's name                 dev      share of train that is held out, to choose the penalty by
        limit      tokens a row has at most         rows     at most so many rows of each split (small versions)
        penalties  of the squared weights

Features are words and pairs of neighbouring words of each text, and for pairs of texts the words that both have, hashed into one table;
weights are tf-idf, each row of length 1. The penalty is the best on the rows held out; then it learns from all of train.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reproduce import rows_data
from reproduce.claims import pack
from reproduce.job import Context
from tokmix.core.optional import np

BUCKETS, SEPARATOR, ROUNDS = 2**18, 102, 40
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

    def times(self, weight: Tensor) -> Tensor:
        """[BUCKETS, classes] -> [n, classes]"""
        return F.embedding_bag(self.columns, weight, self.starts, mode="sum", per_sample_weights=self.values)


def fit(x: Weighted, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Logistic regression by L-BFGS -> weights [BUCKETS, classes], bias [classes]."""
    weight = torch.zeros(BUCKETS, classes, device=labels.device, requires_grad=True)
    bias = torch.zeros(classes, device=labels.device, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        found = F.cross_entropy(x.times(weight) + bias, labels) + penalty * weight.square().sum()
        found.backward()
        return found

    search.step(loss)
    return weight.detach(), bias.detach()


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
    said = (scored.weighted(idf, device).times(weight) + bias).argmax(1).cpu()
    return (said == scored.labels).numpy()
