"""What a task adds to the loop: the model's shape, its batches, its loss, and its figures.

classify, regress   rows with a target each     RowBatches
mlm, rtd            rows or a running text      RowBatches or WindowBatches, with some tokens hidden (rtd: replaced_tokens.py)
lm                  a running text              WindowBatches
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core import stack as stacks
from tokmix.core.mixer import mixer_class
from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.core.outline import outline
from tokmix.core.seeds import seeded
from tokmix.data.batches.mask import IGNORE, Masking
from tokmix.data.batches.rows import Batch, Batches, RowBatches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.card import Card
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.split import holdout, portion
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.runs.files import JsonObject
from tokmix.training import encoder, metrics
from tokmix.training.defaults import HELD_ROWS, HELD_TOKENS, UNTRAINED, default_epochs, default_of, default_tokens, default_warm_up
from tokmix.training.distributed import World
from tokmix.training.model_shape import model_config
from tokmix.training.settings import Settings, TrainSettings
from tokmix.training.target_scaler import unit_of

HIDING = ("mlm", "rtd")  # tasks that hide tokens of any text
MASK = 0.15  # share of tokens hidden where masked language modelling is the task itself


def task_of(card: Card, asked: str | None) -> str:
    """The task of a run: the data's own, or masked language modelling on any text."""
    if asked is None or asked == card.task:
        return card.task
    if asked in (*HIDING, "embed", "distill"):  # contrast.py and distill/ say what data these need
        return asked
    raise ValueError(f"task={asked!r} does not fit the data, which was prepared for {card.task!r}; prepare it with task={asked}")


def final_split(files: TokenFiles, asked: str | None) -> str | None:
    """The split of the reported figure: the one asked for, else test, else valid, where there is one."""
    if asked is not None:
        files.card.split(asked)  # says so where it is not there
    return asked or next((name for name in ("test", "valid") if name in files), None)


class TrainingTask:
    """A prepared folder and settings -> everything the loop asks for."""

    frozen = False  # the encoder stays as it is: frozen.py
    teacher: JsonObject | None = None  # of distill: its name, and what reading the texts cost

    def __init__(self, files: TokenFiles, settings: Settings):
        self.files, self.card, self.settings = files, files.card, settings
        if "train" not in files:
            raise ValueError(f"{files.folder} has no train split; it has: {', '.join(files.splits)}")
        self.train: TrainSettings = settings.train
        self.task = task_of(self.card, self.train.task)
        self.final = final_split(files, self.train.final)
        self.start = self._start()
        self.config = model_config(self.card, self.task, settings.model, self.start)
        outline(self.config)  # a stack that does not fit the task says so now
        if self.train.documents and not self.card.stream:
            raise ValueError("train.documents parts the documents of a running text, and the data is rows: leave it out")
        for name in ("packed", "documents"):
            for spec in stacks.parse(self.config.stack):
                if getattr(self.train, name) and "packed" not in mixer_class(spec.name).modes:
                    raise ValueError(f"mixer {spec.name!r} has no 'packed' mode: train it with {name}=false")
        self.held_split = "train"
        self.kept, self.held = self._divide(files["train"])
        roles = self.card.tokenizer["roles"]
        self.hidden = roles.get("mask")
        self.specials = torch.tensor(sorted({roles[role] for role in ("pad", "cls", "sep", "eot") if role in roles}))
        self.default = default_of(self.card, self.task, self.start is not None)
        self.lr = self.default.lr if self.train.lr is None else self.train.lr
        self.average = self.default.average if self.train.average is None else self.train.average
        self.hide = (
            (self.default.token_dropout if self.hidden is not None else 0.0)
            if self.train.token_dropout is None
            else self.train.token_dropout
        )
        if (self.hide or self.train.pretrain) and self.hidden is None:
            what = "train.token_dropout" if self.hide else "train.pretrain"
            raise ValueError(f"{what} needs a tokenizer with a mask token; prepare the data as rows, with a tokenizer made for them")
        if self.train.pretrain and self.task not in LABELLED:
            raise ValueError(f"train.pretrain comes before classify or regress, not before {self.task}")
        if self.train.label_smoothing and self.task != "classify":
            raise ValueError(f"train.label_smoothing smooths the classes of classify, and this is {self.task}: leave it out")
        self.warm_up_epochs = self._warm_up_epochs()
        if self.train.generator is not None and self.task != "rtd":
            raise ValueError(f"train.generator guesses tokens for train.task=rtd, and this is {self.task}: leave it out")
        hides = self.task in HIDING or (self.task == "distill" and self.card.stream)
        if self.train.mask is not None and not hides and not self.warm_up_epochs:
            other = ", or a warm-up before it: train.pretrain=30" if self.task in LABELLED else ""
            raise ValueError(f"train.mask hides tokens to be found, and {self.task} hides none: it needs train.task=mlm{other}")
        share = MASK if self.train.mask is None else self.train.mask
        self.masking = Masking(self.card, share, self.train.seed) if self.task in HIDING else None
        scores = self.card.splits["train"].scores
        self.mean, self.deviation = (scores["mean"], scores["deviation"] or 1.0) if self.task == "regress" else (0.0, 1.0)
        self.unit = unit_of(self.deviation)
        self.class_weights = self._class_weights() if self.train.balance else None

    def before(self, world: World, quiet: bool) -> None:
        """What has to be there before the first step."""

    def _start(self) -> encoder.Encoder | None:
        if (name := encoder.named(self.train.start)) is None:
            return None
        if self.task == "lm":
            raise ValueError("train.start is for models that see both directions, and a language model does not: leave it out")
        if self.train.pretrain:
            raise ValueError("train.pretrain is a warm-up of a fresh model, and train.start begins with a trained one: leave one out")
        found = encoder.read(name)
        encoder.check_tokenizer(found, self.files)
        return found

    def rate_scales(self, model: Model) -> dict[str, float]:
        """By parameter name."""
        usual = 1.0 if self.start is None else encoder.LAYER_DECAY
        return encoder.rate_scales(model, usual if self.train.layer_decay is None else self.train.layer_decay)

    def _class_weights(self) -> Tensor:
        """[classes]: one over a class's share of the rows, so that the mean over rows is 1."""
        if self.task != "classify":
            raise ValueError(f"train.balance weighs the classes of classify, and this is {self.task}: leave it out")
        counts = torch.tensor([max(count, 1) for count in self.card.splits["train"].labels.values()], dtype=torch.float32)
        return counts.sum() / (len(counts) * counts)

    def _divide(self, split: TokenSplit) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Row numbers (trained on, held out); (None, None) where too little is there to hold anything out."""
        share = self.train.holdout
        if share is None and self.task in LABELLED and "valid" in self.files and self.final != "valid":
            # Valid is neither trained on nor reported on: it is there to choose by.
            self.held_split, valid = "valid", self.files["valid"]
            held = portion(np.arange(len(valid)), valid.keys, min(1.0, HELD_ROWS / max(len(valid), 1)))
            every = self.train.fraction == 1
            return (None if every else portion(np.arange(len(split)), split.keys, self.train.fraction)), held
        if share is None:
            share = min(0.1, HELD_TOKENS / max(split.tokens, 1) if self.card.stream else HELD_ROWS / max(len(split), 1))
        kept, held = holdout(split.groups, share)
        if not (len(held) and len(kept)):
            return (None, None) if self.train.fraction == 1 else (portion(np.arange(len(split)), split.keys, self.train.fraction), None)
        return portion(kept, split.keys, self.train.fraction), held  # what is held out stays the same for every fraction

    def build(self, device: torch.device) -> Model:
        """A fresh model of the seed."""
        with seeded(self.train.seed):
            model = Model(self.config)
        with torch.no_grad():
            if self.task == "regress":
                model.head.bias.fill_(self.mean if self.unit == 1 else 0.0)  # type: ignore[union-attr, operator]
            if self.task in LABELLED:
                scale = self.settings.model.embedding
                model.embedding.weight.mul_(self.default.embedding if scale is None else scale)
        return model.to(device)

    def batches(self, split: str, world: World, rows: np.ndarray | None = None, shuffle: bool = False) -> Batches:
        train, data = self.train, self.files[split]
        tokens = train.tokens or default_tokens(world.device.type, self.card.stream)
        mask = self.masking
        if self.card.stream:
            return WindowBatches(
                data, length=self.config.max_len, tokens=tokens, rows=rows, seed=train.seed, shuffle=shuffle, mask=mask,
                documents=train.documents, rank=world.rank, world=world.size,
            )  # fmt: skip
        if not shuffle and self.task in LABELLED:
            tokens *= UNTRAINED.get(world.device.type, 1)
        return RowBatches(
            data, tokens=tokens, max_rows=train.rows if shuffle else None, rows=rows, seed=train.seed, shuffle=shuffle,
            packed=train.packed, mask=mask, rank=world.rank, world=world.size,
        )  # fmt: skip

    def train_batches(self, world: World) -> Batches:
        return self.batches("train", world, self.kept, shuffle=True)

    def held_batches(self, world: World, share: float = 1.0) -> Batches | None:
        """share: of the held-out rows; the same ones each time."""
        if self.held is None:
            return None
        return self.batches(self.held_split, world, portion(self.held, self.files[self.held_split].keys, share))

    @cache  # noqa: B019 - a task lives as long as its run
    def tokens_of(self, part: str) -> int:
        """Tokens of a part: what is trained on ("train"), what is held out ("held"), the split of the final figure ("final")."""
        if part == "final":
            return 0 if self.final is None else self.files[self.final].tokens
        rows, split = (self.kept, self.files["train"]) if part == "train" else (self.held, self.files[self.held_split])
        if rows is None:
            return split.tokens if part == "train" else 0
        return int(split.lengths(rows).sum())

    def default_epochs(self) -> int:
        return default_epochs(self.card, self.task, self.train.fraction, self.start is not None)

    def _warm_up_epochs(self) -> int:
        """By default only where the length of the run is left to us too."""
        if self.start is not None:
            return 0
        if self.train.pretrain is not None or self.train.epochs is not None or self.train.steps is not None:
            return self.train.pretrain or 0
        return default_warm_up(self.card, self.task, self.train.fraction)

    def hide_tokens(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Some tokens of the input as the mask: what a row says must not hang on a single word."""
        if not self.hide:
            return ids
        chosen = (torch.rand(ids.shape, generator=generator) < self.hide) & ~torch.isin(ids, self.specials)
        return ids.masked_fill(chosen, int(self.hidden or 0))

    def asked(self, batch: Batch) -> Tensor | None:
        """Of HIDING: the numbers of the hidden tokens in the flattened batch, so that the head is computed for them alone."""
        return asked_tokens(batch.targets, self.masking) if self.task in HIDING else None

    def kept_model(self, model: Model) -> Model:
        """What is saved of the model that was trained."""
        return model

    def training_flops(self, model: Model, length: int) -> int:
        """Matrix products of forward and backward pass over an example of that length."""
        if self.frozen:
            return model.cost(length).matmul
        products = model.cost(length).training
        if self.task == "mlm" and self.masking is not None:  # the head is computed for the hidden tokens alone
            hidden = int(self.masking.count(np.array([length]))[0])
            products -= 3 * 2 * (length - hidden) * self.config.dim * self.config.vocab
        return products

    def batch_loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Summed over the batch's targets. forward: of the model, in the precision of the run."""
        at = self.asked(batch)
        return self.loss(forward(batch.ids, batch.segments, *(() if at is None else (at,))), batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Summed over the batch's targets."""
        if outputs.dim() == 2 and (at := self.asked(batch)) is not None:  # logits of the hidden tokens alone
            return loss(self.task, outputs, batch.targets.flatten()[at])
        smoothing = self.train.label_smoothing if self.task == "classify" else 0.0
        weights = batch.row_weights
        if self.class_weights is not None:
            self.class_weights = self.class_weights.to(outputs.device)  # once: a CUDA graph cannot copy from the host
            balanced = self.class_weights[batch.targets.clamp(min=0)]  # added rows have no class, and no loss
            weights = balanced if weights is None else weights * balanced
        return loss(self.task, outputs, batch.targets, self.deviation, smoothing, weights)

    def score(self, figures: dict[str, Any]) -> float:
        """What the best weights are chosen by: higher is better. Where classes are balanced, all of them count the same."""
        if self.train.balance:
            return float(figures["macro_f1"])
        name, sign = main_figure(self.task, figures)
        return sign * float(figures[name])

    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, Any]:
        return evaluate(model, batches, self.task, self.card.labels, world, size, self.deviation)


def loss(
    task: str, outputs: Tensor, targets: Tensor, deviation: float = 1.0, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Summed over the targets, each times its row's weight where there are weights [S]."""
    if task == "regress":
        errors = ((outputs.float() - targets) / deviation).square()
        return errors.sum() if weights is None else errors @ weights
    if task == "multilabel":
        missed = F.binary_cross_entropy_with_logits(outputs.float(), targets, reduction="none").sum(-1)  # [S]
        return missed.sum() if weights is None else missed @ weights
    if weights is not None:
        return F.cross_entropy(outputs.float(), targets, reduction="none", label_smoothing=smoothing) @ weights
    return F.cross_entropy(
        outputs.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )


def asked_tokens(targets: Tensor, masking: Masking | None = None) -> Tensor:
    """targets [B, T] -> the numbers [n] of those that are to be predicted. With `masking` on a GPU n is what that many tokens can have
    at most, a number that follows from the shape alone, as CUDA graphs need it: the rest has no target."""
    flat = targets.flatten()
    if masking is None or not targets.is_cuda:
        return (flat != IGNORE).nonzero().flatten()
    most = targets.shape[0] * int(masking.count(np.array([targets.shape[1]]))[0])
    return (flat == IGNORE).to(torch.uint8).argsort(stable=True)[:most]


def main_figure(task: str, figures: Container[str]) -> tuple[str, int]:
    """(name of the figure a task is known by, 1 where higher is better else -1)"""
    if figure := next((name for name in ("spearman", "cosine") if task in ("embed", "distill") and name in figures), None):
        return figure, 1
    if task == "lm" and "bits_per_byte" in figures:
        return "bits_per_byte", -1
    return (metrics.MAIN[task], 1) if task in metrics.MAIN else ("loss", -1)


@torch.no_grad()  # not inference_mode: a sharded model's first pass makes buffers that later training steps write to
def evaluate(
    model: Model, batches: Batches, task: str, labels: list[str], world: World, size: int | None = None, deviation: float = 1.0
) -> dict[str, Any]:
    """Figures over one epoch of unshuffled batches, each rank on its part. `size`: bytes of the text, for bits per byte."""
    model.eval()
    rows: list[int] = []
    outputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    total, count, hits = 0.0, 0, 0
    for batch in batches.epoch(0):
        moved = batch.to(world.device)
        at = asked_tokens(moved.targets) if task == "mlm" else None
        logits = model(moved.ids, moved.segments, at)
        expected = moved.targets if at is None else moved.targets.flatten()[at]
        if batch.weight == 0:  # nothing of this rank's own, read to keep step: a sharded model needs every rank for a pass
            continue
        total += float(loss(task, logits, expected, deviation))
        count += batch.count
        if task in LABELLED:
            rows += batch.rows
            outputs.append((logits.argmax(-1) if task == "classify" else logits.float()).cpu().numpy())
            targets.append(batch.targets.numpy())
        else:
            hits += int((logits.argmax(-1) == expected).sum())
    parts = world.gather((total, count, hits, rows, outputs, targets))
    total, count, hits = sum(part[0] for part in parts), sum(part[1] for part in parts), sum(part[2] for part in parts)
    figures: dict[str, Any] = {"rows" if task in LABELLED else "tokens": count, "loss": total / max(count, 1)}
    if task in LABELLED:
        predicted = np.concatenate([piece for part in parts for piece in part[4]])
        wanted = np.concatenate([piece for part in parts for piece in part[5]])
        return figures | row_figures(task, predicted, wanted, labels)
    figures["token_accuracy"] = hits / max(count, 1)
    if task == "lm" and size:
        figures["bits_per_byte"] = total / math.log(2) / size
    return figures


def row_figures(task: str, predicted: np.ndarray, targets: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """predicted: classes [rows], scores [rows], or logits [rows, classes] of several labels a row."""
    if task == "regress":
        return metrics.of_scores(predicted, targets)
    if task == "multilabel":
        return metrics.of_label_sets((predicted > 0).astype(np.int64), targets.astype(np.int64), labels)
    return metrics.of_classes(predicted, targets, labels)
