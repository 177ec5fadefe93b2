"""The two parts of a transfer as tasks of the engine, on pieces of a running text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from tokmix.core.model import Model, ModelConfig
from tokmix.core.optional import np
from tokmix.data.batches.rows import Batch, Batches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.order import number
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.training.distributed import World
from tokmix.training.settings import Settings, TrainSettings
from tokmix.training.task import TrainingTask
from tokmix.training.transfer.distillation import Distillation

SHORTEST = 8  # tokens of a piece, where the text has as many
EVALUATIONS = 5
HELD_TOKENS = 8_192  # at most so many, of the text's own valid split, tell how well the copy does


@dataclass(frozen=True)
class Frame:
    """How the teacher's tokenizer begins and ends a text, and what stands for the end of a document."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    eot: int  # of the prepared text
    end: int  # what the teacher is shown in its place

    def put_around(self, pieces: Tensor) -> Tensor:
        """[N, T] -> [N, before + T + after]"""
        rows = len(pieces)
        parts = [torch.tensor(ids, dtype=pieces.dtype).expand(rows, len(ids)) for ids in (self.before, self.after)]
        return torch.cat([parts[0], torch.where(pieces == self.eot, self.end, pieces), parts[1]], dim=1)


class Pieces(WindowBatches):
    """Windows cut into pieces of one length a step, from SHORTEST to the whole window, so that a copy learns all lengths without padding.
    The length is a function of (seed, epoch, step). What is left of a short window is left out."""

    def __init__(self, split: TokenSplit, frame: Frame, *, length: int, tokens: int, seed: int, shuffle: bool):
        self.frame, longest = frame, length - len(frame.before) - len(frame.after)
        super().__init__(split, length=longest, tokens=tokens, seed=seed, shuffle=shuffle)
        self.ladder = [longest]
        while self.ladder[-1] // 2 >= SHORTEST:
            self.ladder.append(self.ladder[-1] // 2)

    def batch(self, epoch: int, step: int) -> Batch:
        windows = super().batch(epoch, step)
        lengths = torch.full((len(windows.ids),), windows.ids.shape[1]) if windows.segments is None else windows.segments.mask.sum(1)
        size = min(self.ladder[number(self.seed, epoch, step, 4) % len(self.ladder)], int(lengths.max()))
        pieces = [row[: int(n) // size * size].reshape(-1, size) for row, n in zip(windows.ids, lengths, strict=True)]
        ids = self.frame.put_around(torch.cat(pieces))
        return Batch(ids, ids, None, windows.rows, ids.numel(), ids.numel())


class TransferTask(TrainingTask):
    """One part: the swapped layers by themselves, or the whole copy."""

    def __init__(
        self,
        files: TokenFiles,
        frame: Frame,
        make: Callable[[], Distillation],
        config: ModelConfig,
        train: TrainSettings,
        held: bool = True,
    ):
        self.files, self.card, self.settings, self.train = files, files.card, Settings(train=train), train
        self.task, self.final, self.start, self.config = "transfer", None, None, config
        self.frame, self.make, self.half = frame, make, train.precision == "bfloat16"
        self.held_split = "valid"
        self.kept = None
        self.held = np.arange(len(files["valid"])) if "valid" in files and len(files["valid"]) else None
        assert train.lr is not None
        self.lr, self.average, self.hide, self.mean, self.unit, self.deviation = train.lr, 0.0, 0.0, 0.0, 1.0, 1.0

    def build(self, device: torch.device) -> Model:
        made = self.make().to(device)
        nn.Module.to(made.pair.teacher, device)
        return made  # type: ignore[return-value]  # has what the engine asks of a model

    def rate_scales(self, model: Model) -> dict[str, float]:
        return {}

    def batches(self, split: str, world: World, rows: np.ndarray | None = None, shuffle: bool = False) -> Batches:
        assert self.train.tokens is not None
        return Pieces(
            self.files[split], self.frame, length=self.config.max_len, tokens=self.train.tokens, seed=self.train.seed, shuffle=shuffle
        )

    def held_batches(self, world: World, share: float = 1.0) -> Batches | None:
        return None if self.held is None else self.batches(self.held_split, world)

    @cache  # noqa: B019 - a task lives as long as its run
    def tokens_of(self, part: str) -> int:
        if part == "final" or (part == "held" and self.held is None):
            return 0
        held = part == "held"
        return min(self.files["valid"].tokens, HELD_TOKENS) if held else self.files["train"].tokens

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs * batch.count

    def score(self, figures: Mapping[str, float]) -> float:
        return -float(figures["loss"])

    @torch.no_grad()
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, float]:
        """The loss on the first HELD_TOKENS of the text held out."""
        total, count = 0.0, 0
        for batch in batches.epoch(0):
            with torch.autocast(world.device.type, torch.bfloat16) if self.half else nullcontext():
                total += float(model(batch.ids.to(world.device))) * batch.count
            count += batch.count
            if count >= HELD_TOKENS:
                break
        return {"tokens": count, "loss": total / max(count, 1)}
