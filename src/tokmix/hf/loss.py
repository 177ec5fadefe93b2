"""Losses as Trainer expects them: the mean over the targets that count, or, where Trainer counted the targets of all
ranks and accumulated steps (num_items_in_batch), the sum divided by that number.
A class or token of -100 does not count; among scores it is a number like any other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.positions import at_least_float32
from tokmix.core.segments import Segments

IGNORE = -100
Total = Tensor | int | float | None


def cross_entropy(logits: Tensor, targets: Tensor, total: Total = None) -> Tensor:
    """logits [..., C], targets [...] of whole numbers."""
    logits = logits.to(at_least_float32(logits.dtype)).flatten(0, -2)
    targets = targets.to(logits.device).flatten()
    return _share(F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum"), (targets != IGNORE).sum(), total)


def squared_error(scores: Tensor, targets: Tensor, total: Total = None) -> Tensor:
    """scores [S], targets [S]."""
    scores = scores.to(at_least_float32(scores.dtype))
    errors = scores - targets.to(scores)
    count = torch.tensor(errors.numel(), device=errors.device)
    if total is not None:  # Trainer leaves scores of -100 out of its number, perhaps all of them
        total = torch.as_tensor(total, device=errors.device).maximum(count)
    return _share(errors.square().sum(), count, total)


def each_label(logits: Tensor, targets: Tensor, total: Total = None) -> Tensor:
    """logits and targets [S, C]: of each class, whether it applies (binary cross-entropy)."""
    logits = logits.to(at_least_float32(logits.dtype))
    losses = F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="sum")
    count = torch.tensor(logits.numel(), device=logits.device)
    if total is not None:  # Trainer counts every entry of the labels
        total = torch.as_tensor(total, device=logits.device).maximum(count)
    return _share(losses, count, total)


def answer_span(starts: Tensor, ends: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Scores [B, T] of the first and last token of an answer, and where it stands, [B]; a place behind the text does not count."""
    targets = [place.to(starts.device).flatten() for place in (start, end)]
    targets = [torch.where((place < 0) | (place >= starts.shape[1]), IGNORE, place) for place in targets]
    return (cross_entropy(starts, targets[0]) + cross_entropy(ends, targets[1])) / 2


def _share(loss: Tensor, count: Tensor, total: Total) -> Tensor:
    if total is None:
        return loss / count.clamp(min=1)
    return loss / (total.to(loss.device) if isinstance(total, Tensor) else total)


def at_tokens(targets: Tensor, segments: Segments | None) -> Tensor:
    """targets [B, T] without those at padding, where a model says nothing."""
    return targets if segments is None else torch.where(segments.mask, targets, IGNORE)


def next_tokens(labels: Tensor, segments: Segments | None) -> Tensor:
    """labels [B, T] that stand at their own tokens -> targets [B, T] that stand one token earlier in the same sequence."""
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORE)
    if segments is None:
        return targets
    following = F.pad(segments.ids[:, 1:], (0, 1))
    return torch.where(segments.mask & (following == segments.ids), targets, IGNORE)
