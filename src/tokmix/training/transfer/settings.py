"""What `transfer` can be told, with its defaults. Imports nothing heavy, so that a command line can show it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_type_hints

from tokmix.core.checks import at_least, typed, within


@dataclass(frozen=True)
class TransferSettings:
    stack: str  # one mixer, for the layers named by --layers, or one for each layer, bottom first; plain `attention` keeps a layer
    layers: str | None = None  # of a single mixer: all, 'every second' (the default), 'first 4', 'last 4', or numbers from 0: 1,3,5
    init: Literal["fresh", "values", "attention"] = "values"  # what of the old weights stays; see `swap` in docs/huggingface.md
    tokens: int = 2_000_000  # to read in all
    first: float = 0.3  # share of the tokens in which the swapped layers learn by themselves
    length: int = 512  # longest pieces of the text; the model's own limit where that is smaller
    batch: int = 4096  # tokens of a step
    lr: float = 1e-3  # largest learning rate while the swapped layers learn by themselves
    lr_whole: float = 3e-4  # the same while the whole model learns
    seed: int = 0  # of fresh weights and of the order of the text
    precision: Literal["float32", "bfloat16"] | None = None  # of products; None: bfloat16 on a GPU and on a CPU with AMX
    device: str | None = None  # None: a GPU where there is one
    threads: int | None = None  # on a CPU; None: torch's own number
    save_seconds: float = 300.0  # between checkpoints

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
