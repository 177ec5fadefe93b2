"""Jobs of kind "rows": one model on one table of labelled texts, its members differing in seed, learning rate or dropout.

    spec   data       the table's name                          model     fields of ModelConfig; classes come from the table
           members    [{seed, lr, dropout?}, ...]               batch, epochs, warmup (steps), clip, schedule (replicas.py)
           dev        share of train that is held out           fraction  of the rest that is learned from
           limit      tokens a row has at most                  score     "dev", what is held out (a search), or "valid"
           embedding  the words' weights begin with this        rows      at most so many rows of each split (small versions)
                      standard deviation, times its inverse: their vectors begin at scale 1, and AdamW moves them faster
           test       with score "valid": whether the rows of test are scored too
           widths     columns that batches may have; where they are not given, those that leave the fewest empty

No epoch is chosen: the figure of a run is its accuracy after the last step. Valid and test are read once, and nothing is chosen by them.
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

from reproduce import rows_data, rows_plan
from reproduce.claims import pack
from reproduce.job import Context
from tokmix.core.model import Model, ModelConfig
from tokmix.core.optional import np
from tokmix.core.seeds import seeded
from tokmix.core.segments import Segments
from tokmix.training import replicas
from tokmix.training.meter import energy_counter
from tokmix.training.precision import autocast
from tokmix.training.step import Forward

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

    def logits(self, forward: Forward, index: Tensor, width: int) -> Tensor:
        return forward(self.ids[:, :width][index], Segments.padded(self.lengths[index], width))

    def loss(self, forward: Forward, index: Tensor, width: int) -> Tensor:
        """The mean over the rows [B]."""
        return F.cross_entropy(self.logits(forward, index, width).float(), self.labels[index])

    def right(self, model: nn.Module, precision: str) -> np.ndarray | None:
        """Whether each row is predicted right; None where an output is no finite number."""
        device = self.ids.device
        right, sound = torch.zeros(len(self), dtype=torch.bool, device=device), torch.ones((), dtype=torch.bool, device=device)
        model.eval()
        with torch.no_grad(), autocast(device, precision):
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
    test: np.ndarray | None = None

    def record(self, member: dict[str, Any], compared: bool) -> dict[str, Any]:
        """compared: row by row with other models, so that all of them are told."""
        told = {**member, "dev": self.dev[-1] if self.dev else None, "dev_curve": self.dev, "loss_curve": self.loss}
        if self.right is None:
            return told | {"state": "diverged", "score": self.chance, "error": "outputs are not finite: it scores the commonest class"}
        told |= {"state": "finished", "score": float(self.right.mean())}
        if self.test is not None:
            told |= {"test": float(self.test.mean()), "test_right": pack(self.test), "test_examples": len(self.test)}
        return told | ({"right": pack(self.right), "examples": len(self.right)} if compared else {})


class Pace:
    """What epochs take, all members together and without scoring; none of the first, which compiles and records."""

    def __init__(self, device: torch.device):
        self.counter = energy_counter(device)
        self.began: tuple[float, float | None] | None = None
        self.epochs: list[tuple[float, float | None]] = []  # seconds, joules

    def begin(self) -> None:
        self.began = self._now()

    def end(self) -> None:
        if self.began is None:
            return
        (early, before), (late, after) = self.began, self._now()
        self.epochs.append((late - early, None if before is None or after is None else after - before))

    def _now(self) -> tuple[float, float | None]:
        return time.perf_counter(), None if isinstance(self.counter, str) else self.counter.joules()

    def of_an_epoch(self) -> dict[str, float | None] | None:
        """The mean; None where there was no second epoch."""
        if not self.epochs:
            return None
        joules = [joules for _, joules in self.epochs if joules is not None]
        seconds = math.fsum(seconds for seconds, _ in self.epochs) / len(self.epochs)
        return {"seconds": seconds, "joules": math.fsum(joules) / len(joules) if len(joules) == len(self.epochs) else None}


class Judge:
    """Scores all members after each epoch, and keeps the time that takes."""

    def __init__(self, models: Sequence[Model], splits: dict[str, Split], score: str, steps: int, chance: float, precision: str):
        self.models, self.dev, self.scored, self.steps, self.precision = models, splits["dev"], splits[score], steps, precision
        self.test = splits.get("test")
        self.tallies = [Tally(chance) for _ in models]
        self.seconds, self.pace = 0.0, Pace(self.scored.ids.device)

    def __call__(self, step: int, losses: list[float]) -> None:
        self.pace.end()
        begin = time.perf_counter()
        for tally, model, loss in zip(self.tallies, self.models, losses, strict=True):
            tally.loss.append(loss if math.isfinite(loss) else None)  # JSON knows no NaN
            right = self.dev.right(model, self.precision) if len(self.dev) else None
            if len(self.dev):
                tally.dev.append(None if right is None else float(right.mean()))
            if step == self.steps:
                tally.right = right if self.scored is self.dev else self.scored.right(model, self.precision)
                tally.test = None if self.test is None else self.test.right(model, self.precision)
        self.seconds += time.perf_counter() - begin
        self.pace.begin()


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    table = rows_data.load(context.data_folder(), spec["data"])
    splits, members, config = _splits(spec, table, context.device), spec["members"], _config(spec, table)
    lengths = splits["train"].host_lengths
    wide = rows_plan.fitting(spec["widths"], lengths) if "widths" in spec else rows_plan.widths(lengths, BUCKETS)
    per_epoch = sum(rows_plan.batch_counts(lengths, wide, spec["batch"]))
    steps = per_epoch * spec["epochs"]
    # A small part of a table has few steps: the rate still rises in the first fifth of them at most.
    recipe = replicas.Recipe(steps, warmup=min(spec["warmup"], steps // 5), clip=spec["clip"], schedule=spec["schedule"])
    models = [_build(config, member) for member in members]
    flops, parameters = _flops(models[0], lengths), models[0].parameter_count()
    for model in models:
        keep(model, table.known())
    context.say(f"{spec['data']}: {len(lengths)} rows, {per_epoch} steps an epoch in widths {wide}, {len(members)} runs of {parameters:,}")

    chance = float(np.bincount(table.valid.labels).max() / len(table.valid))
    judge = Judge(models, splits, spec["score"], steps, chance, recipe.precision)
    counted, begin = {"tokens": 0, "columns": 0}, time.perf_counter()
    made = [
        replicas.Replica(one, splits["train"].loss, member["lr"], seed=member["seed"]) for one, member in zip(models, members, strict=True)
    ]
    with seeded(members[0]["seed"]):  # dropout changes torch's generator
        left_out = replicas.train(
            made,
            _batches(lengths, wide, spec, counted),
            recipe,
            context.device,
            every=per_epoch,
            report=judge,
            say=context.say,
        )
    return {
        "runs": [
            tally.record(member, spec["score"] == "valid") | {"left_out": steps_lost}
            for tally, member, steps_lost in zip(judge.tallies, members, left_out, strict=True)
        ],
        "data": table.sources, "parameters": parameters, "steps": steps, **counted, "flops": flops * spec["epochs"],
        "flops_row": flops / len(lengths), "rows": _counts(spec, table, splits), "widths": wide, "chance": chance,
        "training_seconds": time.perf_counter() - begin - judge.seconds, "evaluation_seconds": judge.seconds,
        "pace": judge.pace.of_an_epoch(),
    }  # fmt: skip


def _splits(spec: dict[str, Any], table: rows_data.Table, device: torch.device) -> dict[str, Split]:
    limit, most, known = spec["limit"], spec.get("rows"), table.known()
    if limit % rows_plan.STEP:
        raise ValueError(f"limit={limit} should be a multiple of {rows_plan.STEP}")
    learned, aside = rows_data.held_out(table.train, spec["dev"], spec.get("fraction", 1.0))
    if spec["score"] == "dev" and not len(aside):
        raise ValueError(f"{spec['data']}: dev={spec['dev']} holds out none of {len(table.train)} rows")
    parts = {"train": (table.train, learned), "dev": (table.train, aside), "valid": (table.valid, np.arange(len(table.valid)))}
    if spec.get("test") and table.test is not None:
        parts["test"] = (table.test, np.arange(len(table.test)))
    return {name: Split(texts, chosen[:most], known, limit, device) for name, (texts, chosen) in parts.items()}


def _counts(spec: dict[str, Any], table: rows_data.Table, splits: dict[str, Split]) -> dict[str, int]:
    """Rows of each split, pieces of what is held out, which nobody learns from, and how many rows are cut."""
    pieces = rows_data.pieces_left_out(table.train, spec["dev"])
    cut = table.train.beyond(spec["limit"]) + table.valid.beyond(spec["limit"])
    return {**{name: len(split) for name, split in splits.items()}, "pieces": pieces, "cut": cut}


def _config(spec: dict[str, Any], table: rows_data.Table) -> ModelConfig:
    common = {"causal": False, "head": "classify", "classes": len(table.labels), "vocab": rows_data.VOCAB}
    return ModelConfig(**{**common, "embedding_std": spec["embedding"], **spec["model"]})


def _build(config: ModelConfig, member: dict[str, Any]) -> Model:
    with seeded(member["seed"]):
        return Model(replace(config, dropout=member.get("dropout", config.dropout)))


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
