"""A model's shapes: those of the model, without importing torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tokmix
from tokmix.core.mixer import mixer_class
from tokmix.core.model import Model, ModelConfig
from tokmix.core.outline import outline, part_of

EVERY_MIXER = """
import sys, tokmix
from tests.core.test_outline import config_of
from tokmix.core.outline import outline
for name in tokmix.mixers():
    outline(config_of(name))
    assert "torch._dynamo" not in sys.modules, f"{name}: draws in a way that imports torch's compiler"
print("ok")
"""


def config_of(name: str, head: str = "classify") -> ModelConfig:
    causal = "bidirectional" not in mixer_class(name).modes
    sizes = {"dim": 32, "vocab": 50, "classes": 3, "max_len": 16, "ngrams": 1 if causal else 2}
    return ModelConfig(stack=f"{name}*2", head=head, causal=causal, positions="learned", **sizes)


@pytest.mark.parametrize("name", tokmix.mixers())
def test_an_outline_has_the_shapes_of_the_model(name: str) -> None:
    shapes = lambda model: {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in model.state_dict().items()}
    drawn = outline(config_of(name))
    assert shapes(drawn) == shapes(Model(config_of(name)))
    assert all(tensor.is_meta for tensor in drawn.state_dict().values())


def test_no_built_in_mixer_imports_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_MIXER], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


def test_a_part_of_a_model_has_its_weights() -> None:
    whole, config = Model(config_of("hsm")), config_of("hsm", head="none")
    part = part_of(whole, config)
    assert part.config == config and not any(tensor.is_meta for tensor in part.state_dict().values())
    ids = torch.randint(50, (2, 9))
    torch.testing.assert_close(part(ids), whole.hidden(ids, None), rtol=0, atol=0)
