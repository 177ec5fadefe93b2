"""`tokmix eval MODEL DATA`: the figures of a trained model on data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokmix.core.checks import printable
from tokmix.data.batches.mask import Masking
from tokmix.data.batches.rows import Batches, RowBatches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.card import Card
from tokmix.data.tokens import TokenSplit
from tokmix.training import answers, eval_data, model_folder
from tokmix.training.contrast import scored
from tokmix.training.distributed import World
from tokmix.training.imports import import_files
from tokmix.training.task import MASK, evaluate, main_figure

TOKENS = 8192  # of a batch
MATRIX, MISTAKES = 8, 10  # most classes of a confusion matrix; mistakes shown for more classes
CLASSES = 30  # most classes shown one by one; of more, the worst


def figures(trained: model_folder.Trained, data: str | Path, split: str | None = None, **settings: Any) -> dict[str, Any]:
    """settings: those of prepare, for data that is not prepared."""
    if trained.task == "rtd":
        raise ValueError(f"{trained.folder} tells replaced tokens, and who replaces them is not saved: its figures are in training.json")
    if trained.task in ("embed", "distill"):
        return scored(trained, data, split, settings)
    with eval_data.token_files(trained, data, settings) as files:
        chosen = eval_data.choose_split(files, split)
        batches: Batches
        mask = _masking(trained, files.card) if trained.task == "mlm" else None
        if files.card.stream:
            apart = bool(trained.about.settings.get("documents", False))
            batches = WindowBatches(chosen, length=trained.model.config.max_len, tokens=TOKENS, shuffle=False, mask=mask, documents=apart)
        else:
            batches = RowBatches(chosen, tokens=TOKENS, shuffle=False, mask=mask)
        size = chosen.facts.bytes if trained.task == "lm" else None
        world = World(device=trained.model.embedding.weight.device)
        deviation = trained.about.deviation
        warned = [*files.card.warnings, *_seen(trained, chosen)]
        if trained.linear is None and not trained.mixture.thresholds:
            found = evaluate(trained.model, batches, trained.task, trained.labels, world, size, deviation)
        else:
            outputs, targets = answers.network_outputs(trained.model, batches, world)
            outputs = answers.mixed_outputs(trained.linear, trained.mixture, outputs, files, chosen)
            found = answers.mixed_figures(trained.task, outputs, targets, trained.labels, deviation, trained.mixture)
        return {"split": chosen.name, "truncated": chosen.facts.truncated, "warnings": warned, **found}


def _seen(trained: model_folder.Trained, split: TokenSplit) -> Iterator[str]:
    """Warn if rows were trained on: their figure measures memory."""
    count = answers.trained_on(trained.folder, split)
    if count:
        share = 100 * count / len(split)
        yield f"{count:,} of {len(split):,} rows ({share:.3g} %) have a text that the model was trained on: the figures are too good"


def _masking(trained: model_folder.Trained, card: Card) -> Masking:
    """Hide as many tokens as in the evaluations of training, by the same seed."""
    train = trained.about.settings
    return Masking(card, train.get("mask") or MASK, train.get("seed", 0))


def run(
    model: str | Path,
    data: str | Path,
    *,
    split: str | None = None,
    as_json: bool = False,
    device: str = "cpu",
    imports: Sequence[str | Path] = (),
    **settings: Any,
) -> dict[str, Any]:
    import_files(imports)
    trained = model_folder.load(model, device)
    found = figures(trained, data, split, **{name: value for name, value in settings.items() if value is not None})
    for warning in found["warnings"]:  # no figure contains rows that were left out
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(found) if as_json else table(trained.task, found))
    return found


def table(task: str, found: dict[str, Any]) -> str:
    """Text lines; the last one is the main figure of the task."""
    name, _ = main_figure(task, found)
    unit = "rows" if "rows" in found else "tokens"
    lines = [f"{found[unit]:,} {unit} of {found['split']}" + (f", {found['truncated']:,} of them cut" if found["truncated"] else "")]
    lines += [f"{key} {value:.4f}" for key, value in found.items() if isinstance(value, float) and key != name]
    lines += [f"95 % interval of {key}: {low:.4f} to {high:.4f}" for key, (low, high) in found.get("intervals", {}).items()]
    lines += class_lines(found["classes"]) if found.get("classes") else []
    if "confusion" in found:
        shown = confusion_lines if len(found["labels"]) <= MATRIX else mistake_lines
        lines += shown(found["labels"], found["confusion"])
    return printable("\n".join([*lines, f"{name} {found[name]:.4f}"]))


def class_lines(classes: dict[str, dict[str, float]]) -> list[str]:
    """Precision, recall and F1 of each class; of many classes, those with the lowest F1."""
    chosen = list(classes.items())
    if len(chosen) > CLASSES:
        chosen = sorted(chosen, key=lambda item: item[1]["f1"])[:MISTAKES]
    width = max(len("class"), *(min(len(label), 24) for label, _ in chosen))
    lines = [f"{'class':<{width}}  precision  recall      f1    rows"]
    for label, one in chosen:
        lines.append(f"{label[:24]:<{width}}  {one['precision']:9.4f}  {one['recall']:6.4f}  {one['f1']:6.4f}  {one['rows']:6,}")
    return [*([f"the {len(chosen)} classes with the lowest F1:"] if len(chosen) < len(classes) else []), *lines]


def confusion_lines(labels: list[str], counts: list[list[int]]) -> list[str]:
    """True classes down, predicted ones across, and each class's share of the rows."""
    names = [label[:12] for label in labels]
    width = max(6, *(len(name) for name in names), *(len(str(count)) for row in counts for count in row))
    total = max(1, sum(map(sum, counts)))
    lines = ["true \\ predicted".ljust(16) + "".join(name.rjust(width + 1) for name in names) + "    share"]
    for name, row in zip(names, counts, strict=True):
        lines.append(name.ljust(16) + "".join(str(count).rjust(width + 1) for count in row) + f"{sum(row) / total:9.3f}")
    return lines


def mistakes(labels: list[str], counts: list[list[int]]) -> list[tuple[int, str, str]]:
    """(rows, true class, predicted class), the most common first."""
    found = [(count, labels[a], labels[b]) for a, row in enumerate(counts) for b, count in enumerate(row) if count and a != b]
    return sorted(found, key=lambda one: -one[0])[:MISTAKES]


def mistake_lines(labels: list[str], counts: list[list[int]]) -> list[str]:
    """For many classes: the most common mistakes."""
    found = mistakes(labels, counts)
    width = max((len(str(count)) for count, _, _ in found), default=1)
    lines = [f"{count:{width},} of {true!r} taken for {predicted!r}" for count, true, predicted in found]
    return [f"{len(labels):,} classes; commonest mistakes (--json has the whole table):", *(lines or ["none"])]
