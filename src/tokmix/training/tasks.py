"""Prepared data and settings -> the task of a run."""

from __future__ import annotations

from tokmix.data.tokens import TokenFiles
from tokmix.training.contrast import Contrast
from tokmix.training.distill.task import Distill
from tokmix.training.distill.tokens import DistillTokens
from tokmix.training.replaced_tokens import ReplacedTokens
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask


def task_for(files: TokenFiles, settings: Settings) -> TrainingTask:
    if settings.train.task == "distill" and files.card.stream:
        return DistillTokens(files, settings)
    kinds: dict[str | None, type[TrainingTask]] = {"rtd": ReplacedTokens, "embed": Contrast, "distill": Distill}
    return kinds.get(settings.train.task, TrainingTask)(files, settings)
