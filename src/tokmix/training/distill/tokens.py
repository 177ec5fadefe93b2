"""A student learns a teacher's hidden states of a running text: each token's last state, and one from the middle of both models.

    window [CLS] ... [SEP] ─> teacher ─> last layer [T, E] ─> the D directions it varies most in, at scale 1 ─> wanted [T, D]
                                      ─> middle layer [T, E], each channel at mean 0 and deviation 1 ──> wanted [T, E]
    the same, some hidden  ─> student ─> last layer [T, D] ─────────────────────────────────────────────────> squared error
                                      ─> middle layer ─> linear ("hint", dropped after training) ───────────> squared error

The student sees less than the teacher, so it also learns to find what a hidden token says. Texts that a model is used for are short,
so half of the windows of a batch are cut into pieces of an eighth of the length.

The mean of the student's tokens then points where the teacher's sentence embedding does, up to the directions that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.model import Model, ModelConfig
from tokmix.core.optional import np
from tokmix.core.outline import part_of
from tokmix.core.seeds import seeded
from tokmix.core.segments import Segments
from tokmix.data.batches.rows import Batch, Batches
from tokmix.data.tokens import TokenFiles
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.contrast import mean_of
from tokmix.training.distill.teacher import FOLDER, Teacher, check_tokenizer, start_of_embedding
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

SHARE = 0.15  # of the tokens that the student does not see
SAMPLE = 20_000  # tokens that tell the means, deviations and directions of the teacher's states
HINT = 0.3  # weight of the middle layer beside the last one
CUTS = (1, 8)  # into how many pieces the windows of each half of a batch are cut
SHORTEST = 8  # tokens of a piece


class Student(Model):
    """An encoder with the hint while it is trained."""

    def __init__(self, config: ModelConfig, width: int):
        super().__init__(config)
        self.hint = nn.Linear(config.dim, width)

    def forward(self, ids: Tensor, segments: Segments | None = None, at: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """-> (last states [B, T, D], what the middle layer says of the teacher's [B, T, E])"""
        seen: list[Tensor] = []
        last = self.hidden(ids, segments, seen.append)
        return last, self.hint(seen[len(seen) // 2])

    def parameter_count(self) -> int:
        """Without the hint, which is not kept."""
        return sum(parameter.numel() for name, parameter in self.named_parameters() if not name.startswith("hint."))


@dataclass(frozen=True)
class Scales:
    """What is known of the teacher's states before training, on the device."""

    directions: Tensor  # [E, D], orthogonal; the last states in these directions have a mean square of 1
    mean: Tensor  # [E], of the middle layer
    deviation: Tensor  # [E]


class DistillTokens(TrainingTask):
    def __init__(self, files: TokenFiles, settings: Settings):
        if settings.train.teacher is None:
            raise ValueError("distill needs a teacher: name the folder of a sentence encoder with train.teacher")
        if settings.train.documents:
            raise ValueError("train.documents would cut windows where the teacher reads on: leave it out")
        super().__init__(files, settings)
        self.share = SHARE if self.train.mask is None else self.train.mask

    def before(self, world: World, quiet: bool) -> None:
        assert self.train.teacher is not None
        check_tokenizer(self.train.teacher, self.files)
        self.reader = Teacher(self.train.teacher, world.device, half=world.device.type == "cuda")
        if self.config.dim > self.reader.width:
            raise ValueError(f"model.dim={self.config.dim} is wider than the teacher's states: {self.reader.width} at most")
        longest = getattr(self.reader.model.config, "max_position_embeddings", self.config.max_len)
        if self.config.max_len > longest:
            raise ValueError(f"model.length={self.config.max_len} is longer than what the teacher reads: {longest} tokens at most")
        self.teacher = {**self.reader.card(), "width": self.reader.width}
        self.scales = self._scales(world)

    def _scales(self, world: World) -> Scales:
        """Of the file, so that they are the same ones after a resume."""
        if world.first and not self._path.is_file():
            self._write_scales(world)
        world.wait()
        known, notes = load_tensors(self._path)
        if notes.get("teacher") != self.reader.card()["sha256"]:
            told = self.train.teacher
            raise ValueError(f"{self._path} was made by another teacher than {told}: remove it, or name that teacher")
        return Scales(**{name: tensor.to(world.device) for name, tensor in known.items()})

    @property
    def _path(self) -> Path:
        return self.files.folder / FOLDER / f"states-{self.config.dim}.safetensors"

    @torch.inference_mode()
    def _write_scales(self, world: World) -> None:
        batches, last, middle, count = self.train_batches(world), [], [], 0
        for step in range(batches.steps(0)):
            batch = batches.batch(0, step).to(world.device)
            ids, segments = self.read(batch), batch.segments
            states = self.reader.states(ids, segments)
            real = torch.ones_like(ids, dtype=torch.bool) if segments is None else segments.mask
            last.append(states[-1][real].double().cpu())
            middle.append(states[len(states) // 2][real].double().cpu())
            count += int(real.sum())
            if count >= SAMPLE:
                break
        ends, inner = torch.cat(last), torch.cat(middle)
        directions = torch.linalg.eigh(ends.T @ ends).eigenvectors.flip(1)[:, : self.config.dim]
        directions /= (ends @ directions).square().mean().sqrt()
        found = {"directions": directions, "mean": inner.mean(0), "deviation": inner.std(0).clamp_min(1e-6)}
        save_tensors(self._path, {name: value.float() for name, value in found.items()}, {"teacher": self.reader.card()["sha256"]})

    def build(self, device: torch.device) -> Model:
        with seeded(self.train.seed):
            model = Student(self.config, self.reader.width)
        if self.start is None:
            words = self.vocabulary @ self.scales.directions.cpu()
            with torch.no_grad():
                model.embedding.weight.copy_(start_of_embedding(words, model.embedding.weight, self.config.embedding_std))
        return model.to(device)

    @cached_property
    def vocabulary(self) -> Tensor:
        """[V, E]: what the teacher says of each token alone; zeros for a token that it does not know."""
        return torch.from_numpy(self.reader.vocabulary(self.card).astype(np.float32))

    def kept_model(self, model: Model) -> Model:
        """Without the hint."""
        return part_of(model, self.config)

    def training_flops(self, model: Model, length: int) -> int:
        hint = 3 * 2 * length * self.config.dim * self.reader.width
        return model.cost(length).training + hint + 2 * self.reader.parameters * length

    def read(self, batch: Batch) -> Tensor:
        """ids [B, T] of the text, each window between [CLS] and [SEP]. The end of a text is a token that the teacher does not know."""
        roles = self.card.tokenizer["roles"]
        return self._framed(torch.where(batch.ids == roles["eot"], roles["sep"], batch.ids), batch.segments)

    def _framed(self, ids: Tensor, segments: Segments | None) -> Tensor:
        roles = self.card.tokenizer["roles"]
        ends = ids.shape[1] - 1 if segments is None else segments.mask.sum(1, keepdim=True) - 1  # [B, 1]
        place = torch.arange(ids.shape[1], device=ids.device)
        ids = torch.where(place == 0, roles["cls"], ids)
        return torch.where(place == ends, roles["sep"], ids)

    def pieces(self, batch: Batch) -> Iterator[tuple[Tensor, Segments | None]]:
        """(ids, segments): the windows, some cut into shorter ones."""
        ids, segments = self.read(batch), batch.segments
        rows, width = ids.shape
        if segments is not None or rows % len(CUTS) or any(width % cut or width // cut < SHORTEST for cut in CUTS):
            yield ids, segments
            return
        for cut, part in zip(CUTS, ids.chunk(len(CUTS)), strict=True):
            yield self._framed(part.reshape(-1, width // cut), None), None

    def batch_loss(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """Summed over the batch's tokens."""
        found = []
        for ids, segments in self.pieces(batch):
            hidden = torch.rand(ids.shape, device=ids.device) < self.share  # seeded by the step, as dropout is
            last, middle, _ = self.errors(forward, ids, hidden, segments)
            found.append(last + HINT * middle)
        return torch.stack(found).sum()

    def errors(self, forward: Callable[..., Any], ids: Tensor, hidden: Tensor | None, segments: Segments | None) -> tuple[Tensor, ...]:
        """Squared errors summed over the tokens: (of the last states, of the middle ones), and the student's states."""
        last, middle = forward(ids if hidden is None else ids.masked_fill(hidden & self._seeable(ids), int(self.hidden or 0)), segments)
        wanted = self.wanted(ids, segments)
        real = 1.0 if segments is None else segments.mask
        ended = (last.float() - wanted[0]).square().mean(-1)
        inner = (middle.float() - wanted[1]).square().mean(-1)
        return (ended * real).sum(), (inner * real).sum(), last

    def _seeable(self, ids: Tensor) -> Tensor:
        """[CLS] and [SEP] are never hidden."""
        roles = self.card.tokenizer["roles"]
        return (ids != roles["cls"]) & (ids != roles["sep"])

    @torch.no_grad()
    def wanted(self, ids: Tensor, segments: Segments | None) -> tuple[Tensor, Tensor]:
        """The teacher's states: (last [B, T, D], middle [B, T, E])"""
        states, scales = self.reader.states(ids, segments), self.scales
        return states[-1].float() @ scales.directions, (states[len(states) // 2].float() - scales.mean) / scales.deviation

    @torch.no_grad()  # as evaluate() of task.py
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, float]:
        """loss: squared error of the last states, whose mean square is 1, with nothing hidden. cosine: of the means of windows."""
        model.eval()
        sums = torch.zeros(5, dtype=torch.float64)  # tokens, errors of the last and of the middle layer, windows, cosines
        for batch in batches.epoch(0):
            moved = batch.to(world.device)
            if not batch.weight:
                continue
            for ids, segments in self.pieces(moved):
                last, middle, states = self.errors(model, ids, None, segments)
                cosines = F.cosine_similarity(mean_of(states.float(), segments), mean_of(self.wanted(ids, segments)[0], segments))
                real = ids.numel() if segments is None else int(segments.mask.sum())
                sums += torch.tensor([real, float(last), float(middle), len(ids), float(cosines.sum())])
        tokens, last_sum, middle_sum, windows, cosine = torch.stack(world.gather(sums)).sum(0).tolist()
        return {
            "tokens": int(tokens),
            "loss": last_sum / max(tokens, 1),
            "middle": middle_sum / max(tokens, 1),
            "cosine": cosine / max(windows, 1),
        }
