"""Mixers and stacks as text tables."""

from __future__ import annotations

from pathlib import Path

from tokmix.core import stack as stacks
from tokmix.core.checks import at_least
from tokmix.core.mixer import MODES, Cost, mixer_class, mixers, options
from tokmix.core.model import ModelConfig
from tokmix.core.outline import outline


def table(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell; the first row is the header. Cells that start with a digit are aligned right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def cell(text: str, width: int) -> str:
        return text.rjust(width) if text[:1].isdigit() else text.ljust(width)

    lines = ["  ".join(cell(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def reads_as_stack(text: str) -> bool:
    """Whether it is a stack of known mixers; any single word could be a mixer's name."""
    try:
        return all(spec.name in mixers() for spec in stacks.parse(text))
    except ValueError:
        return False


def list_mixers() -> str:
    rows = [["mixer", "time in length", "modes", "options"]]
    for name in mixers():
        cls = mixer_class(name)
        rows.append([name, cls.order, " ".join(mode for mode in MODES if mode in cls.modes), " ".join(options(name))])
    return table(rows)


def show_stack(stack: str, dim: int, length: int, vocab: int, feed_forward: int | str, causal: bool) -> str:
    head = "lm" if causal else "mlm"
    return show_model(
        ModelConfig(stack=stack, dim=dim, vocab=vocab, head=head, causal=causal, max_len=length, feed_forward=feed_forward), length
    )


def show_folder(folder: str | Path, length: int | None = None) -> str:
    """Layers of a model folder, at its own length unless another is given."""
    from tokmix.training import model_folder  # imported here: it needs more than torch

    path = model_folder.find(folder)
    config = model_folder.read_config(path)
    outputs = {"classify": f"{config.classes} classes", "regress": "a score"}.get(config.head, f"{config.vocab:,} tokens")
    return f"{path}: {config.head}, {outputs}\n{show_model(config, config.max_len if length is None else length)}"


def show_model(config: ModelConfig, length: int) -> str:
    at_least("length", length, 1)
    model = outline(config)
    if model.limit is not None and length > model.limit:
        raise ValueError(f"length={length} is more than this model takes: max_len={model.limit}")
    rows = [["layer", "mixer", "parameters", "matmul FLOPs", "pointwise", "state", "reach"]]
    total_cost, total = Cost(), 0
    for number, layer in enumerate(model.layers, 1):  # as `explain` counts them
        count, cost = sum(p.numel() for p in layer.parameters()), layer.cost(length)
        total_cost, total = total_cost + cost, total + count
        rows.append([str(number), layer.mixer.kind, *_numbers(count, cost), _reach(layer.mixer.reach())])
    rows.append(["all", f"{len(model.layers)} layers", *_numbers(total, total_cost), _reach(model.reach())])
    whole = model.cost(length)
    notes = [
        f"{config.stack}: one sequence of {length:,} tokens, forward, width {config.dim}, feed-forward {config.feed_forward}",
        table(rows),
        f"with embedding and output: {model.parameter_count():,} parameters, {whole.matmul:,} matmul FLOPs",
    ]
    if whole.causal != whole.matmul:
        notes.append(f"without the masked half of causal scores: {whole.causal:,} matmul FLOPs")
    return "\n".join(notes)


def _reach(reach: int | None) -> str:
    return "all" if reach is None else f"{reach:,}"


def _numbers(parameters: int, cost: Cost) -> list[str]:
    return [f"{parameters:,}", f"{cost.matmul:,}", f"{cost.pointwise:,}", f"{cost.state:,}"]
