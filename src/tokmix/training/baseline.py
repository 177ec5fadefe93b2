"""The bag of words of a run: fitted on the same rows as the network, on their tokens put back into words (linear.py has the model)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokmix.core.optional import np
from tokmix.data.card import Card
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.training import linear
from tokmix.training.defaults import is_pair
from tokmix.training.linear import ABSENT, Linear, Row, available

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["ABSENT", "available", "bag_texts", "fit_split", "predictions", "texts_of"]
HELD = 0.1  # share of the rows that settings are chosen on, where no rows are held out for it


def bag_texts(tokenizer: Tokenizer, roles: dict[str, int], pair: bool, rows: Iterable[Sequence[int]]) -> list[Row]:
    """The texts whose words are counted, from the ids of rows: what the network does not see, the bag does not either."""
    if not pair:
        return list(tokenizer.decode_batch([list(ids) for ids in rows]))
    ends, parts = roles.get("sep"), []
    for ids in rows:
        listed = list(ids)
        cut = listed.index(ends) if ends in listed else len(listed)
        parts += [listed[:cut], listed[cut:]]
    texts = tokenizer.decode_batch(parts)
    return list(zip(texts[::2], texts[1::2], strict=True))


def texts_of(split: TokenSplit, tokenizer: Tokenizer, card: Card, rows: np.ndarray | None = None, chunk: int = 4096) -> list[Row]:
    """Those of these rows of a split, or of all."""
    texts: list[Row] = []
    chosen = np.arange(len(split)) if rows is None else rows
    for start in range(0, len(chosen), chunk):
        ids, lengths = split.rows(chosen[start : start + chunk])
        parts = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
        texts += bag_texts(tokenizer, card.tokenizer["roles"], is_pair(card), parts)
    return texts


def fit_split(
    files: TokenFiles,
    kept: np.ndarray | None,
    held: tuple[TokenSplit, np.ndarray | None] | None,
    balance: bool = False,
    limit: float | None = None,
) -> Linear:
    """Fitted on these rows of train, or on all; settings chosen on held-out rows (a split and numbers of its rows)."""
    tokenizer, card, train = files.tokenizer(), files.card, files["train"]
    assert train.targets is not None
    texts = texts_of(train, tokenizer, card, kept)
    targets = np.asarray(train.targets if kept is None else train.targets[kept])
    if held is None:
        apart = np.random.default_rng(0).random(len(texts)) < HELD if len(texts) >= 50 else None
        found = linear.fit(card.task, texts, targets, len(card.labels), apart, balance=balance)
        began = time.monotonic()
        whole = linear.fit_kind(card.task, texts, targets, len(card.labels), found.kind, balance)
        whole.tried, whole.seconds = found.tried, found.seconds + time.monotonic() - began
        return whole
    split, rows = held
    assert split.targets is not None
    texts += texts_of(split, tokenizer, card, rows)
    others = np.asarray(split.targets if rows is None else split.targets[rows])
    apart = np.arange(len(texts)) >= len(targets)
    return linear.fit(card.task, texts, np.concatenate([targets, others]), len(card.labels), apart, balance=balance, limit=limit)


def predictions(files: TokenFiles, split: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """Fitted on these rows of train, or on all of it -> (classes predicted for `split`, number of features)."""
    found = fit_split(files, rows, None)
    scores = found.scores(texts_of(files[split], files.tokenizer(), files.card))
    return scores.argmax(-1), found.features
