"""Replaced-token detection (Clark et al. 2020, ELECTRA): a small generator guesses hidden tokens, the encoder says which were replaced.

    text ─ some tokens hidden ─> generator ─ draws a guess for each ─> text with guesses ─> encoder ─> replaced or not, of every token

The encoder learns from every token, not from the hidden ones alone. Both share the embedding. The generator is thrown away at the end.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core import stack as stacks
from tokmix.core.model import Model, ModelConfig
from tokmix.core.outline import outline, part_of
from tokmix.core.positions import within
from tokmix.core.seeds import seeded
from tokmix.core.segments import Segments
from tokmix.data.batches.mask import IGNORE, Masking
from tokmix.data.batches.rows import Batch, Batches
from tokmix.data.tokens import TokenFiles
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask, asked_tokens

SHARE = 0.15  # of the tokens that are hidden
WEIGHT = 50.0  # of the encoder's loss, beside the generator's
Outputs = tuple[Tensor, Tensor, Tensor]


def generator_stack(stack: str) -> str:
    """The first quarter of a stack's layers: at a quarter of the encoder's size its guesses are good, but not too good."""
    specs = stacks.parse(stack)
    return stacks.unparse(specs[: max(1, len(specs) // 4)])


class Detector(Model):
    """An encoder with the generator beside it while it is trained. Without `at` it is the encoder alone."""

    def __init__(self, config: ModelConfig, generator: str, mask: int):
        super().__init__(config)
        small = Model(replace(config, head="mlm", stack=generator))  # its embedding is left behind: the encoder's serves both
        self.generator_layers, self.generator_norm, self.mask = small.layers, small.norm, mask

    def forward(self, ids: Tensor, segments: Segments | None = None, at: Tensor | None = None) -> Tensor | Outputs:  # type: ignore[override]
        """at [n]: the hidden tokens -> (guesses' logits [n, vocab], ids with the guesses [B, T], logits of original and replaced
        [B, T, 2])."""
        if at is None:
            return super().forward(ids, segments)
        guesses = self.guess(ids, segments, at)
        flat = ids.flatten().long()
        with torch.no_grad():  # Gumbel's trick: the largest of logits with such noise is a draw from their softmax
            drawn = (guesses.float() - torch.empty_like(guesses, dtype=torch.float32).exponential_().log()).argmax(-1)
            drawn = torch.where(flat[at] == self.mask, drawn, flat[at])
        filled = flat.scatter(0, at, drawn).view_as(ids)
        return guesses, filled, super().forward(filled, segments)

    def guess(self, ids: Tensor, segments: Segments | None, at: Tensor) -> Tensor:
        segments = self._checked(ids, segments)
        x = self._embed(ids, segments, within(segments, ids))
        for layer in self.generator_layers:
            x = layer(x, segments)
        return F.linear(self.generator_norm(x).flatten(0, 1)[at], self.embedding.weight)

    def parameter_count(self) -> int:
        """Of the encoder, which is what is kept."""
        return sum(parameter.numel() for name, parameter in self.named_parameters() if not name.startswith("generator_"))


class ReplacedTokens(TrainingTask):
    def __init__(self, files: TokenFiles, settings: Settings):
        super().__init__(files, settings)
        if self.train.shard:
            raise ValueError("train.shard cuts the embedding, which generator and encoder share: leave it out, or use train.task=mlm")
        self.masking = Masking(self.card, SHARE if self.train.mask is None else self.train.mask, self.train.seed, always=True)
        self.generator = generator_stack(self.config.stack) if self.train.generator is None else self.train.generator
        outline(replace(self.config, head="mlm", stack=self.generator))  # one that does not fit says so now

    def build(self, device: torch.device) -> Model:
        assert self.hidden is not None
        with seeded(self.train.seed):
            return Detector(self.config, self.generator, self.hidden).to(device)

    def kept_model(self, model: Model) -> Model:
        """The encoder alone."""
        return part_of(model, self.config)

    def training_flops(self, model: Model, length: int) -> int:
        assert isinstance(model, Detector) and self.masking is not None
        hidden = int(self.masking.count(torch.tensor([length]).numpy())[0])
        generator = sum(layer.cost(length).training for layer in model.generator_layers)
        return model.cost(length).training + generator + 3 * 2 * hidden * self.config.dim * self.config.vocab

    def loss(self, outputs: Tensor | Outputs, batch: Batch) -> Tensor:
        """Summed over the hidden tokens; the encoder's is a mean over all tokens, times that many."""
        assert isinstance(outputs, tuple)
        guesses, filled, decisions = outputs
        at = self.asked(batch)
        assert at is not None and self.masking is not None
        real, replaced = answers(batch, filled)
        found = F.cross_entropy(guesses.float(), batch.targets.flatten()[at], ignore_index=IGNORE, reduction="sum")
        wrong = F.cross_entropy(decisions.float().flatten(0, 1), replaced.flatten().long(), reduction="none")
        return found + WEIGHT * self.masking.rate * (wrong * real.flatten()).sum()

    @torch.no_grad()  # as evaluate() of task.py
    def evaluate(self, model: Model, batches: Batches, world: World, size: int | None = None) -> dict[str, float]:
        """detected: the mean of the shares of replaced and of original tokens that were told right; 0.5 is chance."""
        model.eval()
        sums = torch.zeros(6)  # hidden, loss, replaced, of them right, original, of them right
        with seeded(self.train.seed):
            for batch in batches.epoch(0):
                moved = batch.to(world.device)
                outputs = model(moved.ids, moved.segments, asked_tokens(moved.targets))
                if batch.weight == 0:
                    continue
                real, replaced = answers(moved, outputs[1])
                right = (outputs[2].argmax(-1) == replaced) & real
                original = real & ~replaced
                told = [self.loss(outputs, moved), replaced.sum(), (right & replaced).sum(), original.sum(), (right & original).sum()]
                sums += torch.tensor([float(batch.count), *map(float, told)])
        hidden, total, changed, caught, kept, passed = torch.stack(world.gather(sums)).sum(0).tolist()
        detected = (caught / max(changed, 1) + passed / max(kept, 1)) / 2
        return {"tokens": int(hidden), "loss": total / max(hidden, 1), "detected": detected, "replaced": changed / max(changed + kept, 1)}


def answers(batch: Batch, filled: Tensor) -> tuple[Tensor, Tensor]:
    """(which tokens are no padding, which are another than in the text), [B, T] each"""
    real = torch.ones_like(filled, dtype=torch.bool) if batch.segments is None else batch.segments.mask
    return real, real & (batch.targets != IGNORE) & (filled != batch.targets)
