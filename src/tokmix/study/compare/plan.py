"""The plan: stacks with equal parameters, and one run for each stack, fraction and seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokmix.core import stack
from tokmix.core.budget import match_parameters, parameter_count
from tokmix.data.tokens import TokenFiles
from tokmix.study.compare.records import Entry as EntryRecord
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask
from tokmix.training.train import FREE

BAG = "bag of words"
ALIKE = 0.01  # a larger relative difference in parameters is reported


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    name: str
    settings: Settings
    parameters: int
    kind: str = "stack"

    def record(self) -> EntryRecord:
        return {"name": self.name, "kind": self.kind, "parameters": self.parameters, "feed_forward": self.settings.model.feed_forward}


@dataclass(frozen=True)
class Run:
    entry: str
    fraction: float
    seed: int | None  # None: the bag of words, which draws no random numbers
    key: str  # its folder
    settings: Settings

    @property
    def title(self) -> str:
        return f"{self.entry}, {self.fraction * 100:g} % of train" + ("" if self.seed is None else f", seed {self.seed}")


def names_of(stacks: Sequence[str]) -> list[str]:
    names = [" ".join(name.split()) for name in stacks]
    if len(names) < 1:
        raise ValueError("name at least one stack to compare")
    if BAG in names:
        raise ValueError(f"{BAG!r} is always a row of the table: leave it out")
    layers = [stack.parse(name) for name in names]
    for place, name in enumerate(names):
        if layers[place] in layers[:place]:
            first = names[layers.index(layers[place])]
            raise ValueError(f"stack {name!r} is named twice" + ("" if first == name else f": {first!r} has the same layers"))
    return names


def fractions_of(given: Sequence[float]) -> list[float]:
    wrong = next((share for share in given if not 0 < share <= 1), None)
    if wrong is not None or not given:
        raise ValueError(f"fractions={wrong!r} should be above 0 and at most 1")
    return sorted({float(share) for share in given})


def entries(files: TokenFiles, names: Sequence[str], base: Settings, match: str | None) -> tuple[list[Entry], list[str]]:
    """The stacks, widened to the same number of parameters, and notes about it for the user.
    match: largest, first, or None for every stack as it is."""
    works = []
    for name in names:
        try:
            works.append(TrainingTask(files, replace(base, model=replace(base.model, stack=name))))
        except ValueError as error:
            raise ValueError(f"stack {name!r}: {error}") from None
    counts = [parameter_count(work.config) for work in works]
    goal = counts[0] if match == "first" else max(counts)
    notes: list[str] = []
    made = []
    for name, work, count in zip(names, works, counts, strict=True):
        settings = work.settings
        if match is not None and count != goal:
            settings, count = _resized(work, goal, count, notes)
        if abs(count - goal) > ALIKE * goal:
            notes.append(f"{name} has {count:,} parameters, {100 * (count - goal) / goal:+.0f} % against {goal:,}")
        made.append(Entry(name, settings, count))
    return made, notes


def _resized(work: TrainingTask, goal: int, count: int, notes: list[str]) -> tuple[Settings, int]:
    try:
        config = match_parameters(work.config, goal)
    except ValueError as error:
        notes.append(f"not matched: {error}")
        return work.settings, count
    assert isinstance(config.feed_forward, int)
    model = replace(work.settings.model, stack=config.stack, feed_forward=config.feed_forward)
    return replace(work.settings, model=model), parameter_count(config)


def runs(made: Sequence[Entry], seeds: Sequence[int], fractions: Sequence[float], bag: bool) -> list[Run]:
    """Longest first, so that no long run is left alone at the end."""
    found = []
    for fraction in sorted(fractions, reverse=True):
        for entry in made:
            for seed in seeds:
                train = replace(entry.settings.train, seed=seed, fraction=fraction, baseline=False, refit=False, fit_time=False)
                settings = Settings(entry.settings.model, train, {})  # the data will be prepared by then
                found.append(Run(entry.name, fraction, seed, _key(entry.name, fraction, seed, settings), settings))
        if bag:
            settings = Settings(made[0].settings.model, replace(made[0].settings.train, fraction=fraction), {})
            rows = Settings(train=replace(Settings().train, fraction=fraction, holdout=settings.train.holdout, final=settings.train.final))
            found.append(Run(BAG, fraction, None, _key(BAG, fraction, None, rows), settings))
    return found


def flat(settings: Settings) -> dict[str, object]:
    """By full names, as Settings.of takes them."""
    record = settings.record()
    return {f"{group}.{name}": value for group in ("model", "train") for name, value in record[group].items()}


def _key(name: str, fraction: float, seed: int | None, settings: Settings) -> str:
    """A folder's name that changes with every setting that changes the run."""
    asked = {name: value for name, value in flat(settings).items() if name not in FREE}
    mark = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return "-".join(part for part in (plain, f"{fraction:g}", "" if seed is None else f"seed{seed}", mark) if part)
