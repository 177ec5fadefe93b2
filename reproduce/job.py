"""The unit of work: some runs that share data and shapes, all that decides their outcome in plain JSON."""

from __future__ import annotations

import hashlib
import json
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
}


@dataclass(frozen=True)
class Job:
    """key     unique within its item, and usable as a file name
    spec    all that decides the outcome, but for device and versions
    weight  how long it takes, roughly and relative to others: the longest are done first
    """

    key: str
    kind: str
    spec: dict[str, Any]
    weight: float = 1.0

    @property
    def mark(self) -> str:
        """Changes with everything that changes the outcome."""
        return hashlib.sha256(json.dumps([self.kind, self.spec], sort_keys=True).encode()).hexdigest()[:8]

    @property
    def file(self) -> str:
        return f"{self.key}-{self.mark}.json"


@dataclass(frozen=True)
class Context:
    """data: the folder of data sets, or of what `tokmix papers prepare` made of them."""

    device: torch.device
    data: Path | None
    say: Callable[[str], None] = print

    def data_folder(self) -> Path:
        if self.data is None:
            raise ValueError("this item reads data sets: give --data FOLDER or set TOKMIX_DATA")
        return self.data


def runner(kind: str) -> Callable[[dict[str, Any], Context], dict[str, Any]]:
    module, name = KINDS[kind].split(":")
    return getattr(import_module(module), name)
