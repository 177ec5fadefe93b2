"""Weights that come and go: loaded into a model made on the meta device, and offloaded by accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tokmix
from tests.cases import tokens
from tokmix import Segments
from tokmix.core import sampling
from tokmix.core.mixer import mixer_class

accelerate = pytest.importorskip("accelerate")

# Every mixer at its defaults, and the settings that own more kinds of weights.
STACKS = [
    *tokmix.mixers(), "hsm(variant='ab')", "hsm(variant='matrix')", "hsm(variant='gate')", "hsm(variant='fusion')", "hsm(heads=3)",
    "hypermixing(tied=False, heads=3)", "hypermixing(position='learned')", "hypermixing(norm='length')", "attention(conv=4)",
]  # fmt: skip


def language_model(stack: str, **more: object) -> tokmix.Model:
    torch.manual_seed(0)
    causal = "causal" in mixer_class(stack.partition("(")[0]).modes
    head = {"head": "lm" if causal else "mlm", "causal": causal}
    model = tokmix.Model(tokmix.ModelConfig(stack=f"{stack}*2", dim=12, vocab=17, max_len=16, **head, **more))  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in model.parameters():  # nothing at its start of zero or one
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def offloaded(model: nn.Module, kind: str, folder: Path) -> nn.Module:
    if kind == "cpu":
        return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    return accelerate.disk_offload(model, str(folder), execution_device=torch.device("cpu"))


@torch.no_grad()
def stepped(model: tokmix.Model, ids: Tensor) -> Tensor:
    state, found = model.init_state(ids.shape[0]), []
    for part in ids.split([5, 1, 1], dim=1):
        logits, state = model.step(part, state)
        found.append(logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kind", ["cpu", "disk"])
@torch.no_grad()
def test_an_offloaded_language_model_with_tied_weights_is_the_same(stack: str, kind: str, tmp_path: Path) -> None:
    model = language_model(stack)
    ids = torch.randint(0, 17, (2, 7), generator=torch.Generator().manual_seed(1))
    segments = Segments.from_lengths([7, 4])
    steps = model.config.causal and "step" in model.layers[0].mixer.modes
    expected = [model(ids), model(ids, segments), *([stepped(model, ids)] if steps else [])]
    model = offloaded(model, kind, tmp_path)  # type: ignore[assignment]
    assert all(weight.is_meta for weight in model.parameters())
    found = [model(ids), model(ids, segments), *([stepped(model, ids)] if steps else [])]
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["pre", "post", "rezero", "parallel"])
def test_generation_with_offloaded_weights(layout: str) -> None:
    model = language_model("hsm(variant='gate'), hsm, hypermixing", layout=layout, positions="learned", norm="rms")
    prompts = [[3, 1, 4], [1, 5, 9, 2]]
    expected = sampling.generate(model, prompts, max_new=6)
    model = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert sampling.generate(model, prompts, max_new=6) == expected


@pytest.mark.parametrize("stack", STACKS)
@torch.no_grad()
def test_weights_assigned_to_a_model_on_the_meta_device_are_all_it_needs(stack: str) -> None:
    """As `from_pretrained` loads: what a checkpoint does not hold must not be needed."""
    model = language_model(stack)
    with torch.device("meta"):
        empty = tokmix.Model(model.config).eval()
    empty.load_state_dict(model.state_dict(), assign=True)
    assert not [name for name, value in [*empty.named_parameters(), *empty.named_buffers()] if value.is_meta]
    ids = torch.randint(0, 17, (2, 7))
    torch.testing.assert_close(empty(ids), model(ids), rtol=0, atol=0)


def test_mixers_have_no_buffer_that_a_checkpoint_lacks() -> None:
    for stack in STACKS:
        model = language_model(stack)
        saved = model.state_dict()
        assert not [name for name, _ in model.named_buffers() if name not in saved], stack


def test_the_norm_of_a_mixer_is_called_where_somebody_waits_for_it() -> None:
    mixer = tokmix.create("hypermixing", 12, causal=False, max_len=8)
    x = tokens(2, 7, 12).float()
    expected, called = mixer(x), []
    mixer.output_norm.register_forward_hook(lambda *_: called.append(1))
    torch.testing.assert_close(mixer(x), expected)
    assert called
