"""Equal numbers of parameters: the config whose feed-forward width, or hypernetwork size, fits a parameter budget."""

from __future__ import annotations

import math
from dataclasses import replace

from tokmix.core import stack
from tokmix.core.mixer import options
from tokmix.core.model import ModelConfig
from tokmix.core.outline import outline

TOLERANCE = 0.005


def parameter_count(config: ModelConfig) -> int:
    return outline(config).parameter_count()


def match_parameters(config: ModelConfig, target: int | ModelConfig) -> ModelConfig:
    """`config` with the feed-forward width that brings it within 0.5 % of `target` parameters (a number, or the count of
    another config). Without a feed-forward, the hidden size of the mixers that have one is set instead."""
    goal = parameter_count(target) if isinstance(target, ModelConfig) else target
    if isinstance(goal, bool) or not isinstance(goal, int) or goal < 1:
        shown = f"={goal!r}" if isinstance(goal, (int, float, str)) else f" of type {type(goal).__name__}"
        raise ValueError(f"target{shown} is neither a number of parameters nor a ModelConfig")
    unit = 1 if config.feed_forward else _hidden_unit(config)
    base, slope = _line(config, unit)
    size = max(1, round((goal - base) / slope)) if slope else 1
    best = _sized(config, size * unit)
    reached = parameter_count(best)
    if abs(reached - goal) > TOLERANCE * goal:
        what = "feed-forward width" if config.feed_forward else "hidden size"
        raise ValueError(
            f"no {what} brings {config.stack!r} within 0.5 % of {goal:,} parameters; the nearest reachable count is {reached:,}"
        )
    return best


def _line(config: ModelConfig, unit: int) -> tuple[int, int]:
    """The parameter count at size 0, and its growth per unit of the size, which is linear."""
    one, two = (parameter_count(_sized(config, n * unit)) for n in (1, 2))
    return 2 * one - two, two - one


def _sized(config: ModelConfig, size: int) -> ModelConfig:
    if config.feed_forward:
        return replace(config, feed_forward=size)
    specs = [_with_hidden(spec, size) for spec in stack.parse(config.stack)]
    return replace(config, stack=stack.unparse(specs))


def _has_hidden(spec: stack.Spec) -> bool:
    return "hidden" in options(spec.name) and (spec.name != "hsm" or spec.options.get("variant") == "fusion")


def _with_hidden(spec: stack.Spec, size: int) -> stack.Spec:
    return stack.Spec(spec.name, {**spec.options, "hidden": size}) if _has_hidden(spec) else spec


def _hidden_unit(config: ModelConfig) -> int:
    """The smallest hidden size that every mixer's heads divide."""
    specs = [spec for spec in stack.parse(config.stack) if _has_hidden(spec)]
    if not specs:
        raise ValueError(f"{config.stack!r} has no feed-forward and no mixer with a hidden size: there is nothing to resize")
    return math.lcm(*(spec.integer("heads") for spec in specs))
