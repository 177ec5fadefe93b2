"""Which language models an item trains: stacks at equal parameters or with an equal feed-forward net, as jobs of kind "lm"."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from reproduce.item import Outcomes
from reproduce.job import Job
from reproduce.lm import config_of
from tokmix.core import stack
from tokmix.core.budget import TOLERANCE, parameter_count

Arm = Literal["parameters", "feed-forward"]  # what a stack shares with the yardstick
Settings = tuple[tuple[str, Any], ...]  # of ModelConfig, by name
ARMS: dict[Arm, str] = {"parameters": "equal parameters", "feed-forward": "equal feed-forward"}


@dataclass(frozen=True)
class Setting:
    """What all models of an item share. yardstick: the stack whose parameters, or feed-forward width, the others get."""

    text: str
    yardstick: str
    feed_forward: int
    dim: int = 256
    vocab: int = 4096
    context: int = 256
    positions: str = "sinusoidal"
    batch: int = 32
    epochs: int | None = None
    steps: int | None = None
    warmup: int = 100
    lr: float = 2e-3  # the best of three tried on TinyStories (reproduce/hsm)
    peek: int = 256
    points: int = 4
    seeds: int = 3

    def model(self, written: str, arm: Arm, settings: Settings = ()) -> dict[str, Any]:
        """Settings of ModelConfig. settings: those that differ from the setting's own."""
        return dict(_model(self, written, arm, settings))


@functools.cache
def _model(setting: Setting, written: str, arm: Arm, settings: Settings) -> Settings:
    base: dict[str, Any] = {
        "stack": written,
        "dim": setting.dim,
        "vocab": setting.vocab,
        "max_len": setting.context,
        "feed_forward": setting.feed_forward,
    }
    base["positions"] = setting.positions
    goal = base | {"stack": setting.yardstick}
    base |= dict(settings)
    if arm == "parameters":
        base["feed_forward"] += _wider(_count(tuple(base.items())), _count(tuple(goal.items())), base)
    return tuple(base.items())


@functools.cache
def _count(model: tuple[tuple[str, Any], ...]) -> int:
    return parameter_count(config_of(dict(model)))


def _wider(has: int, goal: int, model: dict[str, Any]) -> int:
    """What to add to the feed-forward's width to come from `has` parameters to `goal`.
    The width stays a multiple of 16 where that is near enough: tensor cores are several times slower at odd ones."""
    unit = _count(tuple((model | {"feed_forward": model["feed_forward"] + 1}).items())) - has
    exact = model["feed_forward"] + (goal - has) / unit
    for step in (16, 8, 4, 2, 1):
        width = max(1, round(exact / step) * step)
        if abs(width - exact) * unit <= TOLERANCE * goal:
            return width - model["feed_forward"]
    raise ValueError(f"no feed-forward width brings {model['stack']!r} within 0.5 % of {goal:,} parameters")


@dataclass(frozen=True)
class Entry:
    """One row: a stack in one arm. seeds: how many where it is not the setting's number; first: done before others; label: what tables
    call it, where the stack does not say it; settings: of the model, where they are not the setting's; tag: what tells its jobs from
    those of another row with the same stack."""

    stack: str
    arm: Arm = "parameters"
    seeds: int | None = None
    first: bool = False
    label: str = ""
    settings: Settings = ()
    optimizer: str = "adamw"
    tag: str = ""

    @property
    def name(self) -> str:
        return shown(self.stack)

    @property
    def title(self) -> str:
        return f"{self.label} `{self.name}`".strip()

    @property
    def key(self) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        plain += f"-{self.tag}" if self.tag else ""
        return plain if self.arm == "parameters" else f"{plain}-narrow"


def shown(written: str) -> str:
    """As tables show a stack: 'hsm(variant='ab')*8' as 'ab*8'; the rest as it is written."""
    specs = [_shown(spec) for spec in stack.parse(written)]
    return stack.unparse(specs)


def _shown(spec: stack.Spec) -> stack.Spec:
    if spec.name != "hsm":
        return spec
    rest = {key: value for key, value in spec.options.items() if key != "variant"}
    return stack.Spec(str(spec.options.get("variant", "vector")), rest)


def job(setting: Setting, entry: Entry, members: Sequence[dict[str, Any]], key: str | None = None) -> Job:
    spec: dict[str, Any] = {"text": setting.text, "model": setting.model(entry.stack, entry.arm, entry.settings), "members": list(members)}
    spec |= {"batch": setting.batch, "warmup": setting.warmup, "schedule": "cosine", "weight_decay": 0.0, "precision": "bf16"}
    spec |= {"epochs": setting.epochs} if setting.steps is None else {"steps": setting.steps}
    spec |= {"peek": setting.peek, "points": setting.points}
    spec |= {} if entry.optimizer == "adamw" else {"optimizer": entry.optimizer}
    return Job(key or entry.key, "lm", spec, weight=(10.0 if entry.first else 1.0) * len(members))


def jobs(setting: Setting, entries: Iterable[Entry]) -> list[Job]:
    """One for each entry, its seeds side by side."""
    made = [job(setting, entry, seeds_at(setting, entry, setting.lr)) for entry in entries]
    assert len({one.key for one in made}) == len(made), "two entries share a key"
    return made


def seeds_at(setting: Setting, entry: Entry, lr: float, skip: int = 0) -> list[dict[str, Any]]:
    return [{"seed": seed, "lr": lr} for seed in range(skip, entry.seeds or setting.seeds)]


def rates_key(entry: Entry) -> str:
    return f"{entry.key}-rates"


def rates_job(setting: Setting, entry: Entry, rates: Sequence[float], seeds: int | None = None) -> Job:
    """The same at other learning rates, after everything else."""
    members = [{"seed": seed, "lr": rate} for rate in rates for seed in range(seeds or setting.seeds)]
    return replace(job(setting, entry, members, rates_key(entry)), weight=0.1)


def speed_job(setting: Setting, entries: Iterable[Entry], done: Iterable[Job], outcomes: Outcomes, quick: bool) -> list[Job]:
    """How fast these are, as one job, named when all others are done: then it has the device for itself."""
    if any(one.key not in outcomes for one in done):
        return []
    models = {entry.key: setting.model(entry.stack, entry.arm, entry.settings) for entry in entries}
    small = {"steps": 4, "turns": 2, "tokens": 4}
    size = small if quick else {"steps": 80, "turns": 4, "tokens": 32}
    return [Job("speed", "lm_speed", {"models": models, "batch": setting.batch, "precision": "bf16", **size})]


def quick(setting: Setting, yardstick: str) -> Setting:
    """The same with everything small, on a made-up text of bytes."""
    small = {"text": "made-up", "yardstick": yardstick, "dim": 32, "feed_forward": 192, "vocab": 256, "context": 32, "batch": 4,
             "epochs": None, "steps": 6, "warmup": 2, "peek": 4, "points": 2, "seeds": 2}  # fmt: skip
    return replace(setting, **small)  # type: ignore[arg-type]
