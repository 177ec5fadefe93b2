"""Jobs of kind "rows": one model on one table of labelled texts, its members differing in seed, learning rate or dropout.

    spec   data       the table's name                          model     fields of ModelConfig; classes come from the table
           members    [{seed, lr, dropout?}, ...]               batch, epochs, warmup (steps), clip, schedule (fleet.py)
           dev        share of train that is held out           fraction  of the rest that is learned from
           limit      tokens a row has at most                  score     "dev", what is held out (a search), or "valid"
           embedding  the words' weights begin with this        rows      at most so many rows of each split (small versions)
                      standard deviation, times its inverse: their vectors begin at scale 1, and AdamW moves them faster

No epoch is chosen: the figure of a run is its accuracy after the last step. Valid is read once, and nothing is chosen by it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.data.extra import np
from tokmix.model import Model, ModelConfig
from tokmix.papers import fleet, rows_data, rows_plan
from tokmix.papers.claims import pack
from tokmix.papers.job import Context
from tokmix.seeds import seeded
from tokmix.segments import Segments

BUCKETS = 3
EVALUATED = {"cuda": 2**16, "cpu": 2**12}  # columns of a batch in evaluation


class Split:
    """Rows of a table on a device. known: the ids that occur, ascending; a row has their places instead of them."""

    def __init__(self, texts: rows_data.Texts, chosen: np.ndarray, known: np.ndarray, limit: int, device: torch.device):
        self.host_lengths = np.minimum(texts.lengths[chosen], limit)
        longest = -(-int(self.host_lengths.max(initial=1)) // rows_plan.STEP) * rows_plan.STEP
        places = np.searchsorted(known, texts.padded(chosen, longest))
        self.ids = torch.from_numpy(places.astype(np.int32)).to(device)  # [n, T]
        self.lengths = torch.from_numpy(self.host_lengths).to(device)
        self.labels = torch.from_numpy(texts.labels[chosen]).to(device)

    def __len__(self) -> int:
        return len(self.host_lengths)

    def logits(self, model: nn.Module, index: Tensor, width: int) -> Tensor:
        return model(self.ids[:, :width][index], Segments.padded(self.lengths[index], width))

    def losses(self, model: nn.Module, index: Tensor, width: int) -> Tensor:
        """[K, B] -> [K]"""
        rows = index.flatten()
        return F.cross_entropy(self.logits(model, rows, width).float(), self.labels[rows], reduction="none").view_as(index).mean(1)

    def right(self, model: nn.Module, precision: str) -> np.ndarray | None:
        """Whether each row is predicted right; None where an output is no finite number."""
        device = self.ids.device
        right, sound = torch.zeros(len(self), dtype=torch.bool, device=device), torch.ones((), dtype=torch.bool, device=device)
        model.eval()
        with torch.no_grad(), fleet.autocast(device, precision):
            for index, width in self._by_length(EVALUATED[device.type]):
                logits = self.logits(model, index, width)
                right[index] = logits.argmax(1) == self.labels[index]
                sound &= torch.isfinite(logits).all()
        model.train()
        return right.cpu().numpy() if bool(sound) else None

    def _by_length(self, columns: int) -> Iterator[tuple[Tensor, int]]:
        order = np.argsort(self.host_lengths, kind="stable")
        while len(order):
            width = -(-int(self.host_lengths[order[-1]]) // rows_plan.STEP) * rows_plan.STEP
            order, taken = np.split(order, [max(0, len(order) - max(1, columns // width))])
            yield torch.from_numpy(taken).to(self.ids.device), width


@dataclass
class Tally:
    """How a member fares, epoch by epoch. right: which rows of the split that is scored are, after the last step."""

    chance: float
    dev: list[float | None] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    right: np.ndarray | None = None

    def record(self, member: dict[str, Any], compared: bool) -> dict[str, Any]:
        """compared: row by row with other models, so that all of them are told."""
        told = {**member, "dev": self.dev[-1] if self.dev else None, "dev_curve": self.dev, "loss_curve": self.loss}
        if self.right is None:
            return told | {
                "state": "diverged",
                "score": self.chance,
                "error": "outputs are not finite: it scores the commonest class",
            }
        told |= {"state": "finished", "score": float(self.right.mean())}
        return told | ({"right": pack(self.right), "examples": len(self.right)} if compared else {})


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    table = rows_data.load(context.data_folder(), spec["data"])
    limit, device = spec["limit"], context.device
    if limit % rows_plan.STEP:
        raise ValueError(f"limit={limit} should be a multiple of {rows_plan.STEP}")
    learned, aside = rows_data.held_out(table.train, spec["dev"], spec.get("fraction", 1.0))
    every = np.arange(len(table.valid))
    most, known = spec.get("rows"), table.known()
    train, dev, valid = (
        Split(texts, chosen[:most], known, limit, device)
        for texts, chosen in ((table.train, learned), (table.train, aside), (table.valid, every))
    )
    scored = {"dev": dev, "valid": valid}[spec["score"]]
    if not len(scored):
        raise ValueError(f"{spec['data']}: dev={spec['dev']} holds out none of {len(table.train)} rows")
    members, config = spec["members"], _config(spec, table)
    wide = rows_plan.widths(train.host_lengths, BUCKETS)
    per_epoch = sum(rows_plan.batch_counts(train.host_lengths, wide, spec["batch"]))
    steps = per_epoch * spec["epochs"]
    # A small part of a table has few steps: the rate still rises in the first fifth of them at most.
    recipe = fleet.Recipe(steps, warmup=min(spec["warmup"], steps // 5), clip=spec["clip"], schedule=spec["schedule"])
    models = [_build(config, member, spec["embedding"]) for member in members]
    flops, parameters = _flops(models[0], train.host_lengths), models[0].parameter_count()
    for model in models:
        keep(model, known)
    context.say(f"{spec['data']}: {len(train)} rows, {per_epoch} steps an epoch in widths {wide}, {len(members)} runs of {parameters:,}")

    counted = {"tokens": 0, "columns": 0}
    common = float(np.bincount(table.valid.labels).max() / len(table.valid))
    tallies = [Tally(common) for _ in members]
    evaluating = 0.0

    def report(step: int, losses: list[float]) -> None:
        nonlocal evaluating
        begin = time.perf_counter()
        for tally, one, loss in zip(tallies, models, losses, strict=True):
            tally.loss.append(loss if math.isfinite(loss) else None)  # JSON knows no NaN
            right = dev.right(one, recipe.precision) if len(dev) else None
            if len(dev):
                tally.dev.append(None if right is None else float(right.mean()))
            if step == steps:
                tally.right = right if scored is dev else valid.right(one, recipe.precision)
        evaluating += time.perf_counter() - begin

    begin = time.perf_counter()
    with seeded(members[0]["seed"]):  # of dropout
        left_out = fleet.train(
            [fleet.Member(one, member["lr"]) for one, member in zip(models, members, strict=True)],
            train.losses,
            _batches(train.host_lengths, wide, spec, counted),
            recipe,
            device,
            every=per_epoch,
            report=report,
        )
    training = time.perf_counter() - begin - evaluating
    return {
        "runs": [
            tally.record(member, scored is valid) | {"left_out": steps_lost}
            for tally, member, steps_lost in zip(tallies, members, left_out, strict=True)
        ],
        "data": table.sources,
        "parameters": parameters,
        "steps": steps,
        **counted,
        "flops": flops * spec["epochs"],
        "flops_row": flops / len(train),
        "rows": {
            "train": len(train),
            "dev": len(dev),
            "valid": len(valid),
            "pieces": rows_data.pieces_left_out(table.train, spec["dev"]),
            "cut": table.train.beyond(limit) + table.valid.beyond(limit),
        },
        "widths": wide,
        "chance": common,
        "training_seconds": training,
        "evaluation_seconds": evaluating,
    }


def _config(spec: dict[str, Any], table: rows_data.Table) -> ModelConfig:
    return ModelConfig(**{"causal": False, "head": "classify", "classes": len(table.labels), "vocab": rows_data.VOCAB, **spec["model"]})


def _build(config: ModelConfig, member: dict[str, Any], embedding: float) -> Model:
    with seeded(member["seed"]):
        model = Model(replace(config, dropout=member.get("dropout", config.dropout)))
    with torch.no_grad():
        model.embedding.weight *= embedding
    model.embedding_scale = 1 / embedding
    return model


def keep(model: Model, known: np.ndarray) -> None:
    """Only the rows of the embedding that some text reads: the others would stay as they are, and most of a step would go by
    carrying them through the optimizer."""
    weight = model.embedding.weight.detach()[torch.from_numpy(known).long()]
    model.embedding = nn.Embedding.from_pretrained(weight, freeze=False)


def _batches(lengths: np.ndarray, wide: Sequence[int], spec: dict[str, Any], counted: dict[str, int]) -> Iterator[tuple[int, Tensor]]:
    """counted: tokens and columns (padding too) that one run has seen."""
    seeds = [member["seed"] for member in spec["members"]]
    for number in range(spec["epochs"]):
        for width, index in rows_plan.epoch(lengths, wide, spec["batch"], seeds, number):
            counted["tokens"] += int(lengths[index[0]].sum())
            counted["columns"] += width * index.shape[1]
            yield width, torch.from_numpy(index)


def _flops(model: Model, lengths: np.ndarray) -> int:
    """Matrix products of an epoch, forward and backward, every row at its own length; padding is not counted."""
    values, counts = np.unique(lengths, return_counts=True)
    return sum(int(count) * model.cost(int(value)).training for value, count in zip(values, counts, strict=True))
