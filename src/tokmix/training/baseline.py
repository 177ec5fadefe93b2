"""The bag of words of a run: fitted on the same rows as the network, on their tokens put back into words (linear.py has the model)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokmix.core.optional import np
from tokmix.data.card import Card
from tokmix.data.split import portion
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.training import linear_search
from tokmix.training.defaults import is_pair
from tokmix.training.linear import ABSENT, Linear, Row, available, rows_fitted

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["ABSENT", "available", "bag_texts", "fit_split", "predictions", "texts_of"]


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


def share_fitted(rows: int, card: Card) -> float:
    """Of so many rows, the share that the bag is fitted on: others are not even turned into text."""
    return rows_fitted(rows, len(card.labels)) / max(rows, 1)


def fit_split(
    files: TokenFiles,
    kept: np.ndarray | None,
    held: tuple[TokenSplit, np.ndarray | None] | None,
    balance: bool = False,
    limit: float | None = None,
) -> Linear:
    """Fitted on these rows of train, or on all; held: the rows held out, a split and numbers of its rows."""
    tokenizer, card, train = files.tokenizer(), files.card, files["train"]
    assert train.targets is not None
    chosen = np.arange(len(train)) if kept is None else kept
    chosen = portion(chosen, train.keys, share_fitted(len(chosen), card))
    texts = texts_of(train, tokenizer, card, chosen)
    targets, groups, apart = np.asarray(train.targets[chosen]), np.asarray(train.groups[chosen]), None
    if held is not None:
        split, rows = held
        assert split.targets is not None
        texts += texts_of(split, tokenizer, card, rows)
        chosen = np.arange(len(split)) if rows is None else rows
        apart = np.arange(len(texts)) >= len(targets)
        targets, groups = (np.concatenate([mine, one[chosen]]) for mine, one in ((targets, split.targets), (groups, split.groups)))
    return linear_search.fit(card.task, texts, targets, len(card.labels), apart, groups=groups, balance=balance, limit=limit)


def predictions(files: TokenFiles, split: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """Fitted on these rows of train, or on all of it -> (classes predicted for `split`, number of features)."""
    found = fit_split(files, rows, None)
    scores = found.scores(texts_of(files[split], files.tokenizer(), files.card))
    return scores.argmax(-1), found.features
