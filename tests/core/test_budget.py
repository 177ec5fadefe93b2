from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tokmix import Model, ModelConfig, match_parameters
from tokmix.core.budget import parameter_count


def config(stack: str, **more: Any) -> ModelConfig:
    return ModelConfig(**{"stack": stack, "dim": 64, "vocab": 500, "head": "lm", "causal": True, "max_len": 64, **more})


@pytest.mark.parametrize("stack", ["hsm*4", "hsm(variant='gate')*4", "linear_attention*4", "(hsm, attention)*2", "hypermlp*4"])
def test_the_feed_forward_width_meets_another_models_count(stack: str) -> None:
    target = config("attention*4", feed_forward=256)
    found = match_parameters(config(stack), target)
    assert abs(parameter_count(found) / parameter_count(target) - 1) <= 0.005
    assert found == replace(config(stack), feed_forward=found.feed_forward)


@pytest.mark.parametrize(
    "stack", ["hypermixing(heads=4)*3", "hypermixing(heads=2), hypermixing(heads=3, tied=False)", "mlp_mixer, attention"]
)
def test_without_a_feed_forward_the_hidden_size_does(stack: str) -> None:
    given = config(stack, dim=48, feed_forward=0, head="mlm", causal=False)
    found = match_parameters(given, 100_000)
    assert abs(parameter_count(found) / 100_000 - 1) <= 0.005
    assert found.feed_forward == 0 and "hidden=" in found.stack


def test_the_hidden_size_of_a_fusion_is_one_too() -> None:
    given = config("hsm(variant='fusion'), hsm", feed_forward=None)
    found = match_parameters(given, 60_000)
    assert abs(parameter_count(found) / 60_000 - 1) <= 0.005 and found.stack.endswith(", hsm")


def test_a_number_as_target() -> None:
    assert abs(parameter_count(match_parameters(config("hsm*4"), 300_000)) - 300_000) <= 1500


def test_an_unreachable_budget_names_the_nearest() -> None:
    smallest = parameter_count(config("attention*4", feed_forward=1))
    with pytest.raises(ValueError, match=f"nearest reachable count is {smallest:,}"):
        match_parameters(config("attention*4"), 1000)
    with pytest.raises(ValueError, match="nothing to resize"):
        match_parameters(config("attention*4", feed_forward=0), 1_000_000)
    with pytest.raises(ValueError, match="^target of type Model is neither"):
        match_parameters(config("attention*4"), Model(config("hsm", dim=8)))
    with pytest.raises(ValueError, match="target=-5"):
        match_parameters(config("attention*4"), -5)
