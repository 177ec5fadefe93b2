"""The unit of work: some runs that share data and shapes, all that decides their outcome in plain JSON."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# kind -> the function that does such a job: run(spec, context) -> outcome. Imported when one is done.
KINDS = {
    "rows": "reproduce.rows:run",
    "lm": "reproduce.lm:run",
    "encoder_pretrain": "reproduce.encoder.pretrain:run",
    "encoder_tune": "reproduce.encoder.tune:run",
    "lm_speed": "reproduce.lm_speed:run",
    "synthetic": "reproduce.synthetic:run",
    "shapes": "reproduce.shapes:run",
    "timing": "reproduce.timing:run",
    "bag": "reproduce.bag:run",
    "systematicity": "reproduce.systematicity:run",
}
RESUMABLE = ("lm",)  # kinds that stop when the time is over, and go on from a checkpoint


@dataclass(frozen=True)
class Job:
    """key     unique within its item, and usable as a file name
    spec    all that decides the outcome, but for device and versions
    weight  how long it takes, roughly and relative to others: the longest are done first
    worth   jobs of more worth are done before those of less, whatever they take
    seconds of a GPU, about; None where nobody has estimated it
    """

    key: str
    kind: str
    spec: dict[str, Any]
    weight: float = 1.0
    worth: float = 0.0
    seconds: float | None = None

    @property
    def resumable(self) -> bool:
        return self.kind in RESUMABLE

    @property
    def mark(self) -> str:
        """Changes with everything that changes the outcome."""
        return hashlib.sha256(json.dumps([self.kind, self.spec], sort_keys=True).encode()).hexdigest()[:8]

    @property
    def file(self) -> str:
        return f"{self.key}-{self.mark}.json"


class PausedError(Exception):
    """The time is over; the job goes on from its checkpoint when it is run again."""


@dataclass(frozen=True)
class Context:
    """data        the folder of data sets, or of what `tokmix papers prepare` made of them
    checkpoint  where a resumable job keeps how far it is
    until       of time.monotonic(): a resumable job stops then
    """

    device: torch.device
    data: Path | None
    say: Callable[[str], None] = print
    checkpoint: Path | None = None
    until: float = math.inf

    @property
    def late(self) -> bool:
        return self.checkpoint is not None and time.monotonic() > self.until

    def data_folder(self) -> Path:
        if self.data is None:
            raise ValueError("this item reads data sets: give --data FOLDER or set TOKMIX_DATA")
        return self.data


def runner(kind: str) -> Callable[[dict[str, Any], Context], dict[str, Any]]:
    module, name = KINDS[kind].split(":")
    return getattr(import_module(module), name)
