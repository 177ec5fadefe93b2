"""training.json of a model folder: the data, the settings, the figures and the cost of the run that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tokmix
from tokmix.training import cost_record, encoder, eval_data
from tokmix.training.engine import Engine
from tokmix.training.warmup import Start


def training_record(
    engine: Engine, split: str | None, figures: Mapping[str, object], bag: Mapping[str, object] | None, start: Start | None
) -> dict[str, Any]:
    work, card, progress = engine.work, engine.work.card, engine.progress
    return {
        "tokmix": tokmix.__version__,
        "task": work.task,
        "labels": card.labels if work.task in ("classify", "multilabel") else [],
        "columns": card.columns if work.task != "embed" else {},  # whose model reads single texts
        "stream": card.stream,
        "tokenizer": card.tokenizer,
        "data": {
            "splits": {name: {"rows": part.rows, "tokens": part.tokens, "bytes": part.bytes} for name, part in card.splits.items()},
            "source": card.source,
            "reading": {name: card.settings[name] for name in eval_data.READING if card.settings.get(name) is not None},
            "warnings": card.warnings,
        },
        "model": asdict(work.config),
        "settings": work.settings.record(),
        "encoder": None if work.start is None else {"name": work.start.name, "files": encoder.files(work.start)},
        "teacher": work.teacher,
        "split": split,
        "deviation": work.deviation if work.task == "regress" else None,  # of train's scores, by which a loss is divided
        "figures": figures,
        "baseline": bag,
        "selection": {"score": progress.best_score, "step": progress.best_step, "history": progress.history},
        "cost": cost_record.with_warm_up(cost_record.cost_record(engine), None if start is None else start.cost),
    }
