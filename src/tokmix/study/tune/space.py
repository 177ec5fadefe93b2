"""The search space: a range for each setting. {"train.lr": {"loguniform": [1e-8, 0.1]}, "model.layout": {"choice": ["pre", "rezero"]}}

The parameters of trial i are a function of (seed, i, the setting's name) and of nothing else, so it does not matter which worker draws
them, when, or in which order, and a setting that is added to the space leaves the draws of the others as they were.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tokmix.core.checks import nearest, one_of
from tokmix.training.settings import GROUPS, Settings, read_file

KINDS = ("uniform", "loguniform", "int", "choice")
# What a practitioner varies: learning rates that suit AdamW, and dropout.
DEFAULT = {
    "train.lr": {"loguniform": [3e-4, 1e-2]},
    "model.dropout": {"uniform": [0.0, 0.5]},
    "train.weight_decay": {"loguniform": [1e-3, 0.3]},
}
# The search of the HyperMixer paper (Mai et al. 2023): log10 of the learning rate in U(-8, -1), dropout in U(0, 0.5).
PAPER = {"train.lr": {"loguniform": [1e-8, 1e-1]}, "model.dropout": {"uniform": [0.0, 0.5]}}
NAMED: dict[str, Mapping[str, object]] = {"default": DEFAULT, "paper": PAPER}
FIXED = {
    **{f"train.{name}": "it changes what trials are compared by" for name in ("task", "final", "holdout")},
    **{f"train.{name}": "it does not change the model" for name in ("device", "save_seconds", "save_steps", "log_steps", "baseline")},
}


Value = bool | int | float | str | None  # of a setting, as JSON writes it
Parameters = Mapping[str, Value]  # of a trial, by the full names of the settings


@dataclass(frozen=True)
class Range:
    kind: str
    values: tuple[Any, ...]  # low and high (int: and step), or the choices

    def at(self, share: float) -> Value:
        """The value at this share of the range, 0 <= share < 1."""
        if self.kind == "choice":
            return self.values[int(share * len(self.values))]
        low, high = self.values[:2]
        if self.kind == "uniform":
            return min(max(low + share * (high - low), low), high)
        if self.kind == "loguniform":
            return min(max(10 ** (math.log10(low) + share * (math.log10(high) - math.log10(low))), low), high)
        return low + self.values[2] * int(share * ((high - low) // self.values[2] + 1))

    def ends(self) -> tuple[Value, ...]:
        """The ends of the range. If they are valid, every value is."""
        return self.values if self.kind == "choice" else self.values[:2]

    def record(self) -> dict[str, list[Value]]:
        return {self.kind: list(self.values)}


@dataclass(frozen=True)
class Space:
    ranges: dict[str, Range]  # by the full name of the setting

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Space:
        if not given:
            raise ValueError("the space is empty: nothing to search")
        ranges = {}
        for name, value in _flat(given).items():
            _check_name(name)
            ranges[name] = _range(name, value)
        return cls(ranges)

    @classmethod
    def read(cls, path: str | Path | None) -> Space:
        """From a .json or .yaml file, or by name: default or paper."""
        if path is None or str(path) in NAMED:
            return cls.of(NAMED[str(path or "default")])
        if not Path(path).is_file():
            raise ValueError(f"--space: no file {str(path)!r}, and no space of that name: {', '.join(NAMED)}{nearest(path, NAMED)}")
        given = read_file(Path(path))
        if not isinstance(given, dict):
            raise ValueError(f'{path} should hold a range for each setting, such as {{"train.lr": {{"loguniform": [1e-4, 1e-2]}}}}')
        return cls.of(given)

    def record(self) -> dict[str, dict[str, list[Value]]]:
        return {name: one.record() for name, one in self.ranges.items()}

    def draw(self, seed: int, trial: int) -> dict[str, Value]:
        return {name: one.at(_share(seed, trial, name)) for name, one in self.ranges.items()}

    def check(self, settings: Settings) -> None:
        """Check that the ends of every range are valid values and that the setting has an effect."""
        if "train.epochs" in self.ranges and ("train.steps" in self.ranges or settings.train.steps is not None):
            raise ValueError("space: train.epochs is searched, but train.steps is given and takes its place: leave one of them out")
        for name, one in self.ranges.items():
            for value in one.ends():
                try:
                    apply(settings, {name: value})
                except ValueError as error:
                    raise ValueError(f"space: {error}" if name in str(error) else f"space: {name}: {error}") from None


def apply(settings: Settings, parameters: Parameters) -> Settings:
    """Settings with the parameters of a trial in them."""
    parts: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
    for name, value in parameters.items():
        group, _, key = name.partition(".")
        parts[group][key] = value
    return replace(settings, model=replace(settings.model, **parts["model"]), train=replace(settings.train, **parts["train"]))


def _share(seed: int, trial: int, name: str) -> float:
    """A number in [0, 1) from 53 bits of a hash."""
    digest = hashlib.sha256(json.dumps([seed, trial, name]).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _flat(given: Mapping[str, object]) -> dict[str, object]:
    """Flatten: 'train.lr' at the top, or 'lr' under 'train'."""
    found: dict[str, object] = {}
    for name, value in given.items():
        inner = {f"{name}.{key}": one for key, one in value.items()} if name in GROUPS and isinstance(value, dict) else {name: value}
        if twice := next((key for key in inner if key in found), None):
            raise ValueError(f"space: {twice} stands there twice, by its full name and under its group: leave one out")
        found |= inner
    return found


def _check_name(name: str) -> None:
    every = [f"{group}.{one.name}" for group, settings in GROUPS.items() for one in fields(settings)]
    if name not in every:
        full = next((one for one in every if one.endswith(f".{name}")), None)
        raise ValueError(f"space: unknown setting {name!r}" + (f", did you mean {full!r}?" if full else nearest(name, every)))
    if name.startswith("prepare."):
        raise ValueError(f"space: {name} cannot be searched: the data is prepared once, for all trials")
    if name in FIXED:
        raise ValueError(f"space: {name} cannot be searched: {FIXED[name]}")


def _range(name: str, value: object) -> Range:
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f'space: {name} should be one of {", ".join(KINDS)} with its values, for instance {{"uniform": [0, 0.5]}}')
    ((kind, values),) = value.items()
    one_of(f"range of {name} in the space:", kind, KINDS)
    if not isinstance(values, list) or not values:
        raise ValueError(f"space: {name}: {kind} takes a list of values, not {values!r}")
    if kind == "choice":
        return _choice(name, values)
    number = int if kind == "int" else (int, float)
    if len(values) not in ((2, 3) if kind == "int" else (2,)) or any(isinstance(v, bool) or not isinstance(v, number) for v in values):
        raise ValueError(f"space: {name}: {kind} takes {_WANTED[kind]}, not {values!r}")
    low, high = values[:2]
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"space: {name}: {kind} of {values!r}: both ends should be finite numbers")
    if low >= high:
        raise ValueError(f"space: {name}: {kind} of {values!r}: the lower end should be below the upper one")
    if kind == "loguniform" and low <= 0:
        raise ValueError(f"space: {name}: loguniform of {values!r}: both ends should be above 0")
    if kind != "int":
        return Range(kind, (float(low), float(high)))
    step = values[2] if len(values) == 3 else 1
    if step < 1 or (high - low) % step:
        raise ValueError(f"space: {name}: int of {values!r}: the step {step} does not lead from {low} to {high}")
    return Range(kind, (low, high, step))


_WANTED = {"uniform": "two numbers", "loguniform": "two numbers", "int": "two whole numbers, and a step where it is not 1"}


def _choice(name: str, values: list[Value]) -> Range:
    for value in values:
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise ValueError(f"space: {name}: choice of {value!r}: a choice is a number, a text, true, false or null")
    if len({json.dumps(value) for value in values}) < len(values):
        raise ValueError(f"space: {name}: choice of {values!r}: the same value stands there twice")
    return Range("choice", tuple(values))
