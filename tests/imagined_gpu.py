"""Kernels compiled for a GPU that is not there: what they ask of it, without running them.

    python -m tests.imagined_gpu 89 101376 short "16 tokens"     compute capability x 10, bytes of shared memory of a program, which layers

Prints {case: kernels that were launched}. Where one asks for more shared memory than there is, the launch fails as it would on the GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton.runtime
from triton.backends.compiler import GPUTarget

import tokmix
from reproduce.toy.convolve import convolve
from tokmix.ops import dispatch, ptxas_workaround
from tokmix.ops.shift_mix.select import norm_shift_mix, step
from tokmix.ops.short_conv import short_conv


class Utils:
    def __init__(self, room: int):
        self.room, self.launched = room, set[str]()

    def load_binary(self, name: str, *given: Any) -> tuple[int, ...]:
        self.launched.add(name)
        return 1, 1, 32, 0, 1024  # module, function, registers, spills, most threads

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.room}


class Driver:
    """As much of one as a launch asks for."""

    def __init__(self, capability: int, room: int):
        self.capability, self.utils = capability, Utils(room)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *given: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def layer(name: str, dim: int, tokens: int, dtype: torch.dtype, *, causal: bool = False, **options: Any) -> Callable[[], None]:
    def run() -> None:
        mixer = tokmix.create(name, dim, causal=causal, max_len=tokens, **options).to(dtype)
        x = torch.randn(2, tokens, dim, dtype=dtype, requires_grad=True)
        y = mixer(x)
        torch.autograd.grad(y, [x, *mixer.parameters()], y, allow_unused=True)

    return run


def normed_shift() -> None:
    x, *weights = (torch.randn(*shape, requires_grad=True) for shape in ((2, 256, 512), (1, 512), (1, 512), (512,), (512,)))
    y = norm_shift_mix(x, weights[:2], *weights[2:], 1e-5, (4,))
    torch.autograd.grad(y, [x, *weights], y)


@torch.no_grad()
def step_of_shift() -> None:
    step(torch.randn(2, 1, 512), torch.zeros(2, 4, 512), torch.zeros(2, dtype=torch.long), weights=[torch.ones(1, 512)] * 2)


def convolution() -> None:
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((2, 100, 64), (5, 64, 64), (64,)))
    y = convolve(x, weight, bias, relu=True)
    torch.autograd.grad(y, [x, weight, bias], y)


def taps(K: int, dtype: torch.dtype) -> Callable[[], None]:
    def run() -> None:
        x, weight = (torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in ((2, 100, 1100), (1100, K)))
        y = short_conv(x, weight)
        torch.autograd.grad(y, [x, weight], y)

    return run


HALF, SINGLE = torch.bfloat16, torch.float32
CASES: dict[str, dict[str, Callable[[], None]]] = {
    "short": {f"{T} tokens": layer("hypermixing", 512, T, HALF, hidden=512, tied=False) for T in (16, 32, 64, 128)},
    "short float32": {"64 tokens": layer("hypermixing", 512, 64, SINGLE, hidden=512, tied=False)},
    "heads": {f"tied={tied}": layer("hypermixing", 128, 256, HALF, heads=2, hidden=128, tied=tied) for tied in (True, False)},
    "wide heads": {"of 128": layer("hypermixing", 256, 256, HALF, heads=2, hidden=128)},
    "causal": {f"heads of {e}": layer("hypermixing", e, 256, HALF, causal=True, hidden=e) for e in (64, 128, 256)},
    "blocks": {f"of {C}": layer("hypermixing", 64, 256, HALF, causal=True, hidden=64, block=C) for C in (64, 128)},
    "blocks, wide heads": {f"of {C}": layer("hypermixing", 128, 256, HALF, causal=True, hidden=128, block=C) for C in (16, 32, 64)},
    "taps": {f"{K}, {dtype}": taps(K, dtype) for K, dtype in ((4, HALF), (8, SINGLE))},
    "shifts": {variant: layer("hsm", 512, 256, HALF, causal=True, variant=variant, layer=2) for variant in ("vector", "gate", "matrix")}
    | {"normed": normed_shift, "step": step_of_shift},
    "lags": {name: layer(name, 512, 256, HALF, causal=True) for name in ("hypermlp", "hyperglu")},
    "convolution": {"of the shapes": convolution},
}


def main(capability: int, room: int, which: str, names: list[str]) -> None:
    torch.manual_seed(0)
    driver = Driver(capability, room)
    triton.runtime.driver.set_active(driver)
    dispatch._require_kernels = lambda x: None  # type: ignore[assignment]  # this is a CPU without the interpreter
    dispatch.room = lambda device: room  # type: ignore[assignment]
    ptxas_workaround.choose()
    launched = {}
    with dispatch.implementation("triton"):
        for name in names:
            driver.utils.launched.clear()
            CASES[which][name]()
            launched[name] = sorted(driver.utils.launched)
    print(json.dumps(launched))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
