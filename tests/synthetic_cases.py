"""The synthetic tasks in small, and oracles written from their definitions: plain Python, one row and one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tokmix.data.synthetic.task import Task

# Small vocabularies and short rows, where a mistake shows soon; the base settings are tried beside them.
SMALL = {
    "in_context_recall": {"vocab": 8, "length": 16},
    "noisy_recall": {"vocab": 12, "noise_vocab": 4, "length": 20, "noise": 0.4},
    "fuzzy_recall": {"vocab": 11, "length": 40},
    "selective_copying": {"vocab": 6, "length": 12, "copies": 4},
    "memorisation": {"vocab": 12, "length": 8},
    "compression": {"vocab": 5, "length": 7},
    "mqar": {"vocab": 16, "length": 21, "pairs": 4},
}
ALL = [pytest.param(name, given, id=f"{name}-{size}") for name in SMALL for size, given in (("base", {}), ("small", SMALL[name]))]


def rows(task: Task, n: int = 60, seed: int = 5, test: bool = False) -> Iterator[tuple[list[int], list[int]]]:
    data = task.make(n, seed, test=test)
    return zip(data.inputs.tolist(), data.targets.tolist(), strict=True)


# What a row should ask, from what stands at and before each position. None: nothing.
Oracle = Callable[[Task, list[int]], int | None]


def recall_oracle(task: Task, prefix: list[int]) -> int | None:
    half = (task.vocab - getattr(task, "noise_vocab", 0)) // 2
    *before, key = prefix
    if len(before) % 2 or key >= half:
        return None
    known = dict(zip(before[::2], before[1::2], strict=True))
    return known.get(key)


def fuzzy_oracle(task: Task, prefix: list[int]) -> int | None:
    """The value that followed the same run of key tokens before; of what has been said of it already, the next token."""
    keys, pad = range((task.vocab - 1) // 2), task.vocab - 1
    runs: list[tuple[bool, list[int]]] = []
    for token in prefix:
        kind = token in keys
        if token == pad:
            assert not runs, "padding is on the left"
        elif runs and runs[-1][0] == kind:
            runs[-1][1].append(token)
        else:
            runs.append((kind, [token]))
    motifs = [tuple(motif) for _, motif in runs]
    said: tuple[int, ...] = ()
    if len(motifs) % 2 == 0:
        said = motifs.pop() if motifs else ()
    if not motifs:
        return None
    *before, key = motifs
    value = dict(zip(before[::2], before[1::2], strict=True)).get(key, ())
    return value[len(said)] if len(said) < len(value) else None


def copying_oracle(task: Task, prefix: list[int]) -> int | None:
    blank, copy = task.vocab - 2, task.vocab - 1
    if copy not in prefix or prefix[-1] == copy:
        return None
    at = prefix.index(copy)
    return [token for token in prefix[:at] if token != blank][len(prefix) - at - 2]


def compression_oracle(task: Task, prefix: list[int]) -> int | None:
    return None if prefix[-1] == task.vocab - 1 else prefix[-1]


def mqar_oracle(task: Task, prefix: list[int]) -> int | None:
    first = 2 * task.pairs  # type: ignore[attr-defined]
    known = dict(zip(prefix[:first:2], prefix[1:first:2], strict=False))
    return known.get(prefix[-1]) if len(prefix) > first and len(prefix) % 2 else None


ORACLES: dict[str, Oracle] = {
    "in_context_recall": recall_oracle,
    "noisy_recall": recall_oracle,
    "fuzzy_recall": fuzzy_oracle,
    "selective_copying": copying_oracle,
    "compression": compression_oracle,
    "mqar": mqar_oracle,
}
