"""The settings of `transfer` with their defaults. Imports nothing heavy, so that a command line can show them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_type_hints

from tokmix.core.checks import at_least, typed, within

RECORD, WEIGHTS = "transfer.json", "weights.safetensors"  # of the model folder; of the first stage
PARTS = ("layers", "whole")  # folders of the two stages


@dataclass(frozen=True)
class TransferSettings:
    stack: str  # one mixer for the layers of --layers, or one per layer from the bottom up, where `attention` keeps a layer
    layers: str | None = None  # layers to replace: all, 'every second', 'first 4', 'last 4', or numbers from 0: 1,3,5; None: every second
    init: Literal["fresh", "values", "attention"] = "values"  # which weights of attention to keep; see `swap` in docs/huggingface.md
    tokens: int = 2_000_000  # tokens to train on, both stages together
    first: float = 0.3  # share of the tokens for the first stage, in which each new layer learns to give what its attention layer gave
    length: int = 512  # tokens in a piece of text, at most the limit of the model
    batch: int = 4096  # tokens in a step
    lr: float = 1e-3  # highest learning rate of the first stage
    lr_whole: float = 3e-4  # highest learning rate of the second stage, in which the whole model learns
    seed: int = 0  # seed of new weights and of the order of the text
    precision: Literal["float32", "bfloat16"] | None = None  # of products; None: bfloat16 on a GPU or a CPU with AMX, else float32
    device: str | None = None  # cpu, cuda or cuda:N; None: a GPU if there is one
    threads: int | None = None  # threads on a CPU; None: the default of torch
    save_seconds: float = 300.0  # seconds between checkpoints

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            typed(name, getattr(self, name), hint)
        for name in ("tokens", "batch", "threads"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        at_least("length", self.length, 8)
        at_least("seed", self.seed, 0)
        within("first", self.first, 0, 1)
        for name in ("lr", "lr_whole", "save_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} should be a finite number above 0")

    @property
    def chosen_layers(self) -> str | list[int]:
        """As `swap` takes them."""
        given = "every second" if self.layers is None else self.layers
        parts = [part.strip() for part in given.split(",")]
        return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else given
