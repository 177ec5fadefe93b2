"""A student learns a teacher's sentence embeddings: the mean of its hidden states should point where the teacher's vector does.

    texts ─> teacher ─> vectors [rows, E], computed once (teacher.py) ─> the D directions they vary most in ─> wanted [rows, D]
    texts ─> student ─> mean over the tokens [rows, D] ─────────────────────────────────────────────────────> 1 - cosine, and likeness

likeness: texts of a batch should be as near to each other as the teacher's vectors are (a softmax over cosines, compared by KL). The
student's embedding starts at what the teacher says of each token alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.batches.rows import Batch, Batches, RowBatches
from tokmix.data.tokens import TokenFiles
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.contrast import mean_of
from tokmix.training.defaults import default_tokens
from tokmix.training.distill.teacher import Vectors, start_of_embedding
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

SAMPLE = 20_000  # rows that tell in which directions the teacher's vectors vary


class Distill(TrainingTask):
    def __init__(self, files: TokenFiles, settings: Settings):
        if settings.train.teacher is None:
            raise ValueError("distill needs a teacher: name the folder of a sentence encoder with train.teacher")
        if files.card.stream or len(files.card.columns.get("text") or ()) != 1:
            raise ValueError(f"distill reads a table with one text a row, and {files.folder} holds another kind of data")
        super().__init__(files, settings)
        self.vectors = Vectors(files)

    def before(self, world: World, quiet: bool) -> None:
        if world.first:
            assert self.train.teacher is not None
            self.vectors.make(self.train.teacher, world.device, False if quiet else None)
        world.wait()
        self.teacher = self.vectors.told()
        if self.config.dim > self.vectors.width:
            raise ValueError(f"model.dim={self.config.dim} is wider than the teacher's vectors: {self.vectors.width} at most")
        if world.first:
            self._keep_directions()
        world.wait()

    @property
    def _directions_file(self) -> Path:
        return self.vectors.folder / f"directions-{self.config.dim}.safetensors"

    def _keep_directions(self) -> None:
        """In a file, so that they are the same ones after a resume."""
        if not self._directions_file.is_file():
            sample = self.vectors.of("train")[:SAMPLE].astype(np.float64)
            _, found = np.linalg.eigh(sample.T @ sample)
            chosen = torch.from_numpy(found[:, ::-1][:, : self.config.dim].astype(np.float32))
            save_tensors(self._directions_file, {"directions": chosen}, {})

    @cached_property
    def directions(self) -> np.ndarray:
        """[E, D]: orthonormal; the D directions in which the teacher's vectors are longest."""
        return load_tensors(self._directions_file)[0]["directions"].numpy()

    def build(self, device: torch.device) -> Model:
        model = super().build(device)
        if self.start is None:
            alone = torch.from_numpy(self.vectors.of("vocabulary").astype(np.float32) @ self.directions)  # [V, D]
            with torch.no_grad():
                model.embedding.weight.copy_(start_of_embedding(alone.to(device), model.embedding.weight, self.config.embedding_std))
        return model

    def batches(self, split: str, world: World, rows: np.ndarray | None = None, shuffle: bool = False) -> Batches:
        vectors = self.vectors.of(split)

        def wanted(rows: np.ndarray) -> np.ndarray:
            return vectors[rows].astype(np.float32) @ self.directions

        return RowBatches(
            self.files[split], tokens=self.train.tokens or default_tokens(world.device.type, False), rows=rows,
            max_rows=self.train.rows if shuffle else None, seed=self.train.seed, shuffle=shuffle, rank=world.rank, world=world.size,
            targets=wanted,
        )  # fmt: skip

    def batch_loss(self, forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        pooled = mean_of(forward(batch.ids, batch.segments), batch.segments)
        missed = losses(pooled, batch.targets, self.train.temperature, batch.row_weights)
        return missed.sum() if batch.row_weights is None else missed @ batch.row_weights

    @torch.inference_mode()
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, float]:
        """cosine: between the student's vector of a text and the teacher's, mean over the texts."""
        model.eval()
        sums = torch.zeros(3, dtype=torch.float64)  # texts, loss, cosines
        for batch in batches.epoch(0):
            moved = batch.to(world.device)
            pooled = mean_of(model.hidden(moved.ids, moved.segments), moved.segments)
            if batch.weight:
                loss = losses(pooled, moved.targets, self.train.temperature).sum()
                sums += torch.tensor([batch.count, float(loss), float(F.cosine_similarity(pooled, moved.targets).sum())])
        texts, loss, cosines = torch.stack(world.gather(sums)).sum(0).tolist()
        return {"rows": int(texts), "loss": loss / max(texts, 1), "cosine": cosines / max(texts, 1)}


def losses(pooled: Tensor, wanted: Tensor, temperature: float, weights: Tensor | None = None) -> Tensor:
    """[S, D] of the student and of the teacher -> [S]. weights [S]: rows of weight 0 are nobody's neighbours."""
    ours, theirs = F.normalize(pooled.float(), dim=-1), F.normalize(wanted.float(), dim=-1)
    apart = 1 - (ours * theirs).sum(-1)
    itself = torch.eye(len(ours), dtype=torch.bool, device=ours.device)
    hidden = itself if weights is None else itself | (weights == 0)[None]
    logs = [(unit @ unit.T / temperature).masked_fill(hidden, -1e4).log_softmax(-1) for unit in (ours, theirs)]
    likeness = (logs[1].exp() * (logs[1] - logs[0])).sum(-1)
    return apart + likeness
