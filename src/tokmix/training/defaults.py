"""Default settings by the kind of data. docs/lab.md has the reasons and the figures of the alternatives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tokmix.data.card import Card
from tokmix.data.prepare.targets import LABELLED


@dataclass(frozen=True)
class Default:
    stack: str
    positions: str
    embedding: float  # scale of new embeddings: with small ones, a rare word has no effect
    lr: float
    dropout: float
    token_dropout: float
    average: float = 0.0
    epochs: int = 15  # at most
    compare: bool = False


DEFAULTS = {
    "single": Default("hsm(variant='fusion')*2, hypermixing(heads=2, hidden=64)", "none", 0.1, 2e-3, 0.3, 0.15, average=0.99, epochs=20),
    "pair": Default(
        "hsm(variant='fusion')*2, hypermixing(heads=2, hidden=64, position='sinusoidal')", "none", 0.1, 1e-3, 0.1, 0.05,
        average=0.99, compare=True,
    ),
    "mlm": Default("hsm(variant='fusion')*2, hypermixing(heads=2, hidden=64)*2", "sinusoidal", 1.0, 1e-3, 0.1, 0.0),
    # A stack without attention or position codes: shifts carry the order.
    "distill": Default("(hsm(variant='fusion'), hypermixing(heads=4, shift=1))*2", "none", 1.0, 1e-3, 0.0, 0.0, epochs=3),
    "lm": Default("hsm(variant='ab'), attention(heads=4), hsm(variant='ab'), attention(heads=4)", "sinusoidal", 1.0, 1e-3, 0.1, 0.0),
}  # fmt: skip
ENCODER = Default("", "none", 1.0, 3e-4, 0.1, 0.05, epochs=10)  # rows that start from a trained encoder
HELD_ROWS, HELD_TOKENS = 5000, 200_000  # held out for model selection: a tenth of train, but at most about this many
ROWS_SEEN, TOKENS_SEEN = 200_000, 20_000_000  # a default run reads about this many rows, or tokens of running text ...
FEWEST = 3  # ... but each row at least this many times
LEAST = 25_600  # and at least this many in all
SMALL, WARM_UP = 10_000, 30  # a smaller table of single texts gets this many epochs of warm-up, a tiny one more
TOKENS = {"cpu": 4096, "cuda": 16_384}  # of a batch, by device; tables are bounded by train.rows first
UNTRAINED = {"cuda": 8}  # so many times as many rows at once where nothing is kept for a backward pass: fewer, fuller batches


def default_tokens(device: str, stream: bool) -> int:
    return TOKENS.get(device, TOKENS["cpu"]) if stream else TOKENS["cpu"]


def is_pair(card: Card) -> bool:
    return len(card.columns.get("text") or ()) == 2


def default_of(card: Card, task: str, encoder: bool = False) -> Default:
    """encoder: the run starts from a trained one."""
    if encoder and (task in LABELLED or task == "embed"):
        return replace(ENCODER, compare=is_pair(card) and task != "embed")
    task = "mlm" if task == "rtd" else task
    return DEFAULTS[task if task in DEFAULTS else "pair" if is_pair(card) else "single"]


def default_epochs(card: Card, task: str, fraction: float, encoder: bool = False) -> int:
    """Epochs for this share of the rows."""
    split = card.splits["train"]
    wanted = TOKENS_SEEN / max(split.tokens, 1) if card.stream else ROWS_SEEN / max(split.rows, 1)
    most = max(default_of(card, task, encoder).epochs, _enough(card, fraction))
    return min(max(round(wanted / fraction), FEWEST), most)


def _enough(card: Card, fraction: float) -> int:
    return 1 if card.stream else math.ceil(LEAST / max(card.splits["train"].rows * fraction, 1))


def default_warm_up(card: Card, task: str, fraction: float) -> int:
    """Epochs of warm-up; none for pairs, which learn by comparing."""
    few = card.splits["train"].rows * fraction < SMALL
    return (
        max(WARM_UP, _enough(card, fraction)) if task in LABELLED and few and not is_pair(card) and "mask" in card.tokenizer["roles"] else 0
    )
