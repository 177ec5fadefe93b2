"""Compares the exported graph with the model at five shapes. A graph that differs is not left on disk."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.export.graphs import leaves
from tokmix.runtime.folder import Check
from tokmix.runtime.model import TextModel
from tokmix.training.model_folder import Trained
from tokmix.training.predict import Predictor

FLOAT32 = 1e-4  # of a logit; int8 is reported, not judged: `tokmix eval` shows its effect
TEXTS = 16  # texts compared if a bag of words answers too
STEPS = (4, 1, 1)  # after the first tokens of a language model: how many more, and how often


def shapes(longest: int) -> Iterator[tuple[int, int]]:
    """Batch and length: one of one, the longest, and between."""
    yield from ((1, 1), (1, longest), (2, min(longest, 3)), (5, min(longest, 17)), (3, max(1, longest // 2)))


def compare(model: Model, exported: TextModel, tolerance: float | None) -> list[Check]:
    """The largest difference at each shape; ValueError if one is over the tolerance."""
    draws, checks = np.random.default_rng(0), []
    longest = model.limit or model.config.max_len
    for batch, length in shapes(min(longest, model.config.max_len)):
        lengths = draws.integers(1, length + 1, batch)
        lengths[0] = length
        ids = draws.integers(0, model.config.vocab, (batch, length))
        mask = np.arange(length) < lengths[:, None]
        with torch.inference_mode():
            apart = _steps(model, exported, ids, mask, draws, longest) if model.config.head == "lm" else _rows(model, exported, ids, mask)
        if tolerance is not None and not apart <= tolerance:
            raise ValueError(
                f"the exported graph differs from the model by {apart:.1e} at batch {batch}, length {length};"
                f" at most {tolerance:g} is allowed: nothing was written"
            )
        checks.append(Check(batch, length, apart))
    return checks


def compare_answers(trained: Trained, exported: TextModel) -> None:
    """The network with the bag of words against `tokmix predict`, on texts of random words of the vocabulary."""
    draws, words = np.random.default_rng(1), exported.tokenizer.words()
    texts = [" ".join(draws.choice(words, draws.integers(1, 30)).tolist()) for _ in range(TEXTS)]
    rows = [(text, other) if trained.pair else (text,) for text, other in zip(texts, reversed(texts), strict=True)]
    apart = 0.0
    for found, wanted in zip(exported.answers(rows), Predictor(trained)(rows), strict=True):
        if trained.task == "regress":
            apart = max(apart, abs(found["score"] - wanted["score"]))
        else:
            apart = max(apart, *(abs(found["probabilities"][label] - chance) for label, chance in wanted["probabilities"].items()))
    if not apart <= FLOAT32:
        raise ValueError(
            f"the exported answers differ from those of `tokmix predict` by {apart:.1e}; at most {FLOAT32:g} is allowed:"
            " nothing was written"
        )


def _rows(model: Model, exported: TextModel, ids: np.ndarray, mask: np.ndarray) -> float:
    """Differences of the outputs and of the mean of the last states, which `tokmix.load(...).embed` returns."""
    outputs, pooled = exported._run(ids, mask)
    segments = Segments.from_mask(torch.from_numpy(mask))
    hidden = model.hidden(torch.from_numpy(ids), segments).masked_fill(~segments.mask[..., None], 0)
    apart = float(np.abs(pooled - (hidden.sum(1) / segments.mask.sum(1, keepdim=True)).numpy()).max())
    return apart if outputs is None else max(apart, float(np.abs(outputs - model.finish(hidden, segments).numpy()).max()))


def _steps(model: Model, exported: TextModel, ids: np.ndarray, mask: np.ndarray, draws: np.random.Generator, longest: int) -> float:
    """Compare the first tokens, then a few more from the state after them: logits after each row's last token, and states."""
    batch, apart = len(ids), 0.0
    state, given, read = model.init_state(batch), exported.empty_state(batch), ids.shape[1]
    rows = [row[kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    for more in (0, *STEPS):
        if more:
            if read + more > longest:
                break
            rows, read = draws.integers(0, model.config.vocab, (batch, more)).tolist(), read + more
        lengths = [len(row) for row in rows]
        laid = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
        logits, state = model.step(laid, state, Segments.from_lengths(lengths, max(lengths)))
        wanted = logits[torch.arange(batch), torch.tensor(lengths) - 1].numpy()
        found, given = exported.read(rows, given)
        apart = max(apart, float(np.abs(found - wanted).max()))
    for spec, leaf, (_, tensor) in zip(exported.about.states, given, leaves(state), strict=True):
        if not spec.grows:  # slots from a row's position on are undefined
            apart = max(apart, float(np.abs(leaf - tensor.numpy()).max()))
    return apart
