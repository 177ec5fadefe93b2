"""Sentence embeddings by contrast: the two texts of a pair that mean the same come near each other, those of other pairs do not.

    a ─┐                            b of its own pair        the right answer
    b ─┴─> encoder ─> mean ─> a ──> b of every other pair    wrong: negatives within the batch
    n ─┘                            n of a row that has a's first text and says the opposite: a hard negative

Rows are those of a table of pairs with a class (entailment, duplicate): POSITIVE are pairs, NEGATIVE, or the other of two classes, hard
negatives. A text whose first text is the same is no wrong answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.batches.rows import Batch, Batches, RowBatches, lay_out
from tokmix.data.card import Card
from tokmix.data.order import number
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.training import encoder, metrics
from tokmix.training.defaults import default_tokens, is_pair
from tokmix.training.distributed import World
from tokmix.training.eval_data import choose_split
from tokmix.training.model_folder import Trained
from tokmix.training.predict import by_length
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

POSITIVE = ("entailment", "duplicate", "paraphrase", "equivalent", "same", "yes", "true", "1")
NEGATIVE = ("contradiction",)
KINDS = 3  # of a text in a batch: first of a pair, second, hard negative


def mean_of(hidden: Tensor, segments: Segments | None) -> Tensor:
    """The mean over the tokens of each row. [B, T, D] -> [B, D]"""
    if segments is None:
        return hidden.mean(1)
    mask = segments.mask[..., None]
    return hidden.masked_fill(~mask, 0).sum(1) / mask.sum(1).clamp(min=1)


def embedded(model: Model, encoded: Sequence[np.ndarray]) -> Tensor:
    """An embedding for each text's ids, [texts, D]."""
    if not encoded:
        return torch.zeros(0, model.config.dim)
    return by_length(model, encoded, lambda ids, segments: mean_of(model.hidden(ids, segments), segments))


def parted(ids: np.ndarray, cls: int, sep: int) -> tuple[np.ndarray, np.ndarray]:
    """[CLS] a [SEP] b [SEP] -> [CLS] a [SEP], [CLS] b [SEP]"""
    end = int(np.flatnonzero(ids == sep)[0]) + 1
    return ids[:end], np.concatenate([[cls], ids[end:]])


def classes_of(card: Card) -> tuple[int, list[int]]:
    """(the class of pairs that mean the same, those of hard negatives)"""
    names = [label.strip().lower() for label in card.labels]
    same = [place for place, name in enumerate(names) if name in POSITIVE]
    if len(same) != 1:
        known = ", ".join(POSITIVE)
        raise ValueError(f"which pairs mean the same? one class should be called one of {known}; there are: {', '.join(card.labels)}")
    other = [place for place, name in enumerate(names) if name in NEGATIVE or (len(names) == 2 and place != same[0])]
    return same[0], other


class PairBatches(RowBatches):
    """Pairs that mean the same, each as two rows and a third one where there is a hard negative; targets [rows]: KINDS * group + kind."""

    def __init__(self, split: TokenSplit, *, tokens: int, max_rows: int, rows: np.ndarray, seed: int, shuffle: bool, rank: int, world: int):
        super().__init__(split, tokens=tokens, max_rows=max_rows, rows=rows, seed=seed, shuffle=shuffle, rank=rank, world=world)
        roles, (_, other) = split.card.tokenizer["roles"], classes_of(split.card)
        self.cls, self.sep = roles["cls"], roles["sep"]
        self.hard: dict[bytes, list[int]] = {}  # first text -> rows that say the opposite of it
        assert split.targets is not None
        for row in np.flatnonzero(np.isin(np.asarray(split.targets), other)).tolist():
            self.hard.setdefault(self._texts(row)[0].tobytes(), []).append(row)

    def _texts(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        return parted(np.asarray(self.split.row(row), dtype=np.int64), self.cls, self.sep)

    def batch(self, epoch: int, step: int) -> Batch:
        whole = self.global_rows(epoch, step)
        mine, weight = self._mine(whole)
        texts: list[np.ndarray] = []
        targets: list[int] = []
        groups: dict[bytes, int] = {}
        for row in mine.tolist():
            first, second = self._texts(row)
            key = first.tobytes()
            group = KINDS * groups.setdefault(key, len(groups))
            texts += [first, second]
            targets += [group, group + 1]
            if others := self.hard.get(key):
                texts.append(self._texts(others[number(self.seed, epoch, row) % len(others)])[1])
                targets.append(group + 2)
        lengths = np.array([len(text) for text in texts])
        laid = lay_out(np.concatenate(texts), lengths, int(lengths.max()), self.pad)
        segments = Segments.from_lengths(lengths.tolist(), laid.shape[1])
        count = len(mine) if weight else 0
        return Batch(laid, torch.tensor(targets), segments, tuple(mine.tolist()), count, len(whole), weight)


class Contrast(TrainingTask):
    def __init__(self, files: TokenFiles, settings: Settings):
        if encoder.named(settings.train.start) is None:
            raise ValueError("embeddings are trained from an encoder: name one with --from")
        if files.card.task != "classify" or not is_pair(files.card):
            raise ValueError(f"embeddings are trained on pairs of texts with a class, and {files.folder} holds none")
        self.same, _ = classes_of(files.card)
        super().__init__(files, settings)
        self.kept = self._same("train", self.kept)
        self.held = None if self.held is None else self._same(self.held_split, self.held)
        if len(self.kept) < 2:
            raise ValueError(f"{files.folder} has {len(self.kept)} pairs called {files.card.labels[self.same]!r}: too few to tell apart")
        if self.held is not None and len(self.held) < 2:
            self.held = None

    def _same(self, split: str, rows: np.ndarray | None) -> np.ndarray:
        targets = self.files[split].targets
        assert targets is not None
        rows = np.arange(len(targets)) if rows is None else rows
        return rows[np.asarray(targets)[rows] == self.same]

    def batches(self, split: str, world: World, rows: np.ndarray | None = None, shuffle: bool = False) -> Batches:
        tokens = self.train.tokens or default_tokens(world.device.type, False)
        return PairBatches(
            self.files[split], tokens=tokens, max_rows=self.train.rows, rows=self._same(split, rows), seed=self.train.seed, shuffle=shuffle,
            rank=world.rank, world=world.size,
        )  # fmt: skip

    def batch_loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        return contrast(mean_of(forward(batch.ids, batch.segments), batch.segments), batch.targets, self.train.temperature)[0].sum()

    @torch.no_grad()  # as evaluate() of task.py
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, float]:
        """retrieved: how often a text's own partner is the nearest of its batch."""
        model.eval()
        sums = torch.zeros(3)  # pairs, loss, retrieved
        for batch in batches.epoch(0):
            moved = batch.to(world.device)
            pooled = mean_of(model.hidden(moved.ids, moved.segments), moved.segments)
            losses, nearest = contrast(pooled, moved.targets, self.train.temperature)
            if batch.weight:
                sums += torch.tensor([batch.count, float(losses.sum()), float(nearest.sum())])
        pairs, total, found = torch.stack(world.gather(sums)).sum(0).tolist()
        return {"pairs": int(pairs), "loss": total / max(pairs, 1), "retrieved": found / max(pairs, 1)}


def contrast(pooled: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """pooled [S, D], targets [S] as in PairBatches, below 0 for none -> of each first text its loss and whether its partner is the
    nearest, [S], 0 for the others. Sizes follow from S alone, as CUDA graphs need it."""
    unit = F.normalize(pooled.float(), dim=-1)
    likeness = unit @ unit.T / temperature  # [S, S]
    group, kind, real = targets.div(KINDS, rounding_mode="floor"), targets % KINDS, targets >= 0
    first = real & (kind == 0)
    own = torch.eye(len(targets) + 1, dtype=torch.bool, device=targets.device)[1:, :-1]  # a pair's second text stands behind its first
    also_right = (group[:, None] == group[None]) & (kind == 1)[None] & ~own
    answers = (real & (kind > 0))[None] & ~also_right
    likeness = likeness.masked_fill(~answers, torch.finfo(likeness.dtype).min)
    right = (likeness * own).sum(1)
    losses = torch.where(first, likeness.logsumexp(1) - right, 0)
    return losses, first & (right >= likeness.amax(1))


def scored(trained: Trained, data: str | Path, split: str | None, settings: dict[str, object]) -> dict[str, object]:
    """Figures on a table of pairs with scores: how the cosine of their embeddings goes with the score."""
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        known: dict[str, Any] = {"tokenizer": str(trained.folder / "tokenizer.json"), "max_len": trained.model.config.max_len} | settings
        prepare(data, Path(folder) / "data", task="regress", **known)
        files = TokenFiles(Path(folder) / "data")
        if not is_pair(files.card):
            raise ValueError(f"{trained.folder} gives embeddings, measured on pairs of texts with a score, and {data} holds single texts")
        chosen, roles = choose_split(files, split), files.card.tokenizer["roles"]
        assert chosen.targets is not None
        pairs = [parted(np.asarray(chosen.row(row), dtype=np.int64), roles["cls"], roles["sep"]) for row in range(len(chosen))]
        one, other = (embedded(trained.model, [pair[side] for pair in pairs]) for side in (0, 1))
        likeness, wanted = F.cosine_similarity(one, other).numpy(), np.asarray(chosen.targets)
        figures = {"spearman": metrics.spearman(likeness, wanted), "pearson": metrics.pearson(likeness, wanted)}
        return {"split": chosen.name, "truncated": chosen.facts.truncated, "warnings": files.card.warnings, "rows": len(pairs), **figures}
