"""The model of a run: its settings, the defaults of the data, and the encoder it starts from, made into one config."""

from __future__ import annotations

from tokmix.core.model import ModelConfig
from tokmix.data.card import Card
from tokmix.data.prepare.targets import LABELLED
from tokmix.training import encoder
from tokmix.training.defaults import Default, default_of, is_pair
from tokmix.training.model_folder import HEADS
from tokmix.training.settings import ModelSettings


def model_config(card: Card, task: str, settings: ModelSettings, start: encoder.Encoder | None = None) -> ModelConfig:
    default = default_of(card, task, start is not None)
    length = settings.length if card.stream else card.max_len
    assert length is not None
    config = ModelConfig(
        stack=settings.stack or default.stack or default_of(card, task).stack,
        dim=settings.dim,
        vocab=card.tokenizer["vocab"],
        head=HEADS.get(task, task),
        causal=task == "lm",
        max_len=length,
        classes=len(card.labels) if task in ("classify", "multilabel") else 1 if task == "regress" else 2,
        layout=settings.layout,
        norm=settings.norm,
        feed_forward="auto" if settings.feed_forward is None else settings.feed_forward,
        feed_forward_kind=settings.feed_forward_kind,
        dropout=default.dropout if settings.dropout is None else settings.dropout,
        positions=settings.positions or default.positions,
        pooling=settings.pooling or "max",
        # Rows have a scale of their own (TrainingTask.build), which was tuned with weights that are read as they are.
        embedding_std=1.0 if task in LABELLED else ModelConfig.embedding_std,
        ngrams=settings.ngrams,
        buckets=settings.buckets,
        separator=_separator(card, default, settings.compare),
    )
    return config if start is None else encoder.model_config(start, settings, config)


def _separator(card: Card, default: Default, asked: bool | None) -> int | None:
    """The id that ends each of the two texts, where they are to be compared."""
    known = card.tokenizer["roles"].get("sep") if is_pair(card) else None
    if asked and known is None:
        raise ValueError("model.compare needs rows of two texts, and a tokenizer with a separator between them")
    return known if asked or (asked is None and default.compare) else None
