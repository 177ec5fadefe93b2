"""How deep the call of a layer is: Python frames from `mixer(x)` down to the launch of a kernel, torch's own frames included."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch

import tokmix
from tests.kernel_rule import needs_interpreter
from tokmix.ops import implementation

MOST = 7

# A layer, the tokens of a sequence, and a kernel that its forward pass launches: module and name.
LAYERS = {
    "hsm": ("hsm", {}, 16, "shift_mix.kernels.weighted", "weighted_forward"),
    "hsm gate": ("hsm", {"variant": "gate"}, 16, "shift_mix.kernels.gated", "gate_forward"),
    "hsm matrix": ("hsm", {"variant": "matrix"}, 16, "shift_mix.kernels.matrix", "bring_together"),
    "hypermixing, narrow heads": ("hypermixing", {"heads": 2}, 40, "hyper_mix.kernels.reassociated", "state"),
    "hypermixing, narrow heads, output": ("hypermixing", {"heads": 2}, 40, "hyper_mix.kernels.reassociated", "output"),
    "hypermixing, short sequences": ("hypermixing", {}, 16, "hyper_mix.kernels.short_sequences", "short_forward"),
    "hypermixing, wide heads": ("hypermixing", {"inner": 24}, 140, "hyper_mix.kernels.wide_heads", "middle_forward"),
    "hypermixing, causal": ("hypermixing", {"causal": True}, 70, "causal_hyper_mix.kernels.chunked_scan", "read"),
    "hypermixing, blocks": ("hypermixing", {"causal": True, "block": 16}, 70, "causal_hyper_mix.kernels.block_causal", "block_read"),
    "hypermlp": ("hypermlp", {"causal": True}, 20, "hyper_mlp.kernels.forward", "sums"),
    "short convolution": ("conv_k", {}, 20, "short_conv.kernels.depthwise", "conv_forward"),
}


class Launched(Exception):
    """The kernel under watch is reached."""


class Spy:
    """Stands in the place of a kernel and counts the frames above its launch."""

    arg_names = ()

    def __init__(self, outermost: FrameType):
        self.outermost, self.frames = outermost, 0

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.launch

    def launch(self, *given: object, **constants: object) -> None:
        frame = sys._getframe(1)  # the one that launches
        while frame is not self.outermost:
            assert frame.f_back is not None
            self.frames, frame = self.frames + 1, frame.f_back
        raise Launched


@needs_interpreter
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("case", LAYERS)
def test_frames_from_a_layer_to_its_kernel(case: str, trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name, options, length, module, kernel = LAYERS[case]
    layer: torch.nn.Module
    if name == "conv_k":
        layer = tokmix.create("hypermlp", 16, causal=True, max_len=256).conv_k
    else:
        layer = tokmix.create(name, 16, **{"causal": False, "max_len": 256, **options})  # type: ignore[arg-type]
    x = torch.randn(2, length, 16, requires_grad=trained)
    spy = Spy(sys._getframe())
    monkeypatch.setattr(importlib.import_module(f"tokmix.ops.{module}"), kernel, spy)
    with implementation("triton"), torch.set_grad_enabled(trained), pytest.raises(Launched):
        layer(x)
    assert 0 < spy.frames <= MOST, spy.frames
