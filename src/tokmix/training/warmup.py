"""A warm-up: before its own task a model looks for hidden tokens in train's text (masked language modelling, Devlin et al. 2019).

    warmup/checkpoints/, log.jsonl   while it runs
    warmup/weights.safetensors       when it is done: the weights the run begins with, and, in the header, what they cost

Small tables profit: a word that stands in five rows is met in every one of them, whatever their labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tokmix.core.model import ModelConfig
from tokmix.training import cost_record
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask

FOLDER, WEIGHTS = "warmup", "weights.safetensors"
LR, DROPOUT, MASK, EVALUATIONS = 1e-3, 0.1, 0.3, 4


class MaskedPretraining(TrainingTask):
    """The same model and rows, with the task of finding hidden tokens."""

    def __init__(self, work: TrainingTask):
        train = replace(
            work.train, task="mlm", epochs=work.warm_up_epochs, steps=None, lr=LR, average=0.0, token_dropout=0.0, label_smoothing=0.0,
            pretrain=0, mask=MASK if work.train.mask is None else work.train.mask, evaluations=EVALUATIONS,
            minutes=None if work.train.minutes is None else work.train.minutes / 2,
        )  # fmt: skip
        super().__init__(work.files, Settings(work.settings.model, train, work.settings.prepare))
        self.kept, self.held, self.held_split = work.kept, work.held, work.held_split  # the same rows, also where valid is held out
        self.config = replace(work.config, head="mlm", dropout=min(DROPOUT, work.config.dropout), embedding_std=ModelConfig.embedding_std)


@dataclass(frozen=True)
class Start:
    weights: dict[str, Tensor]  # by name, of everything but the head
    cost: dict[str, Any]


def save(engine: Engine, path: Path) -> None:
    model = engine.sharding.gather(engine.model)
    if model is None:
        return
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    tensors["embedding.weight"] = tensors["embedding.weight"] * model.embedding_scale  # kept small, being the output matrix too
    save_tensors(path, tensors, {"cost": json.dumps(cost_record.cost_record(engine))})


def load(path: Path) -> Start:
    tensors, notes = load_tensors(path)
    return Start(tensors, json.loads(notes["cost"]))
