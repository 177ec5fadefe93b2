"""Kernels compile for real GPUs, large and small, and none asks for more shared memory than there is: plain torch runs instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.machine_code import unset_registers
from tokmix.ops import dispatch
from tokmix.ops.dispatch import A100, ANY_GPU, H100

# capability x 10, shared memory of a program
RTX_4090, AN_A100, AN_H100 = (89, ANY_GPU), (80, A100), (90, H100)
SCAN, BLOCK = (
    {"write", "join", "read", "chunk_backward", "later_chunks_backward"},
    {"write", "block_read", "block_border", "block_backward"},
)
TAPS = {"conv_forward", "conv_backward"}
LAGS = {"sums", "output", "weights", "scores_backward", "banks", "keys_backward", "keys"}
SHORT, WIDE = {"short_forward", "short_backward"}, {"gelu_forward", "gelu_backward", "spread"}
HEADS = {"state", "middle_forward", "output", "middle_backward", "tied_backward"}
SHIFTS = {
    "vector": {"weighted_forward", "weighted_backward"},
    "gate": {"gate_forward", "gate_backward"},
    "matrix": {"bring_together", "spread_out"},
    "normed": {"norm_forward", "norm_backward"},
    "step": {"step"},
}
# gpu, layers, what is launched for each case (more may be)
EXPECTED: list[tuple[tuple[int, int], str, dict[str, set[str]]]] = [
    (RTX_4090, "short", dict.fromkeys(("16 tokens", "32 tokens", "64 tokens", "128 tokens"), SHORT)),
    (AN_H100, "short", {"128 tokens": SHORT}),
    (RTX_4090, "short float32", {"64 tokens": SHORT}),
    (RTX_4090, "heads", {"tied=True": HEADS, "tied=False": {"output_backward", "state_backward"}}),
    (AN_H100, "heads", {"tied=True": HEADS, "tied=False": {"output_backward", "state_backward"}}),
    (RTX_4090, "wide heads", {"of 128": WIDE}),
    (RTX_4090, "causal", {"heads of 64": SCAN, "heads of 128": set(), "heads of 256": set()}),
    (AN_A100, "causal", {"heads of 128": SCAN, "heads of 256": set()}),
    (RTX_4090, "blocks", {"of 64": BLOCK, "of 128": set()}),
    (AN_A100, "blocks", {"of 128": BLOCK}),
    (AN_H100, "blocks", {"of 128": BLOCK}),
    (AN_A100, "blocks, wide heads", {"of 16": BLOCK, "of 32": BLOCK, "of 64": set()}),
    (AN_H100, "blocks, wide heads", {"of 32": BLOCK, "of 64": BLOCK}),
    (RTX_4090, "taps", dict.fromkeys(("4, torch.bfloat16", "8, torch.float32"), TAPS)),
    (RTX_4090, "shifts", SHIFTS),
    (RTX_4090, "lags", {"hypermlp": LAGS}),
    (AN_H100, "lags", {"hypermlp": LAGS, "hyperglu": {"sums", "output", "scores_backward", "keys_backward"}}),  # the others are the same
    (RTX_4090, "convolution", {"of the shapes": {"slide", "weigh"}}),
]


@pytest.mark.slow
@pytest.mark.skipif(not dispatch.HAS_TRITON, reason="triton is not installed")
@pytest.mark.skipif(dispatch.INTERPRETED, reason="nothing is compiled in the interpreter")
@pytest.mark.parametrize(("gpu", "which", "expected"), EXPECTED, ids=[f"{which} on {gpu[0]}" for gpu, which, _ in EXPECTED])
def test_compiles_and_fits(gpu: tuple[int, int], which: str, expected: dict[str, set[str]], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.imagined_gpu", *map(str, gpu), which, *expected]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr[-4000:]
    launched = {name: set(kernels) for name, kernels in json.loads(ran.stdout).items()}
    assert launched.keys() == expected.keys()
    for name, kernels in expected.items():
        assert kernels <= launched[name], (name, launched[name])
        assert bool(launched[name]) == bool(kernels), (name, launched[name])
    if gpu == AN_H100:
        wrong = {path.stem: found for path in tmp_path.glob("*/*.cubin") if (found := unset_registers(path))}
        assert not wrong


@pytest.mark.parametrize(("major", "shared", "hip", "found"), [(7, 64, None, 0), (8, 99, None, 99), (9, 227, None, 227), (9, 64, "6.4", 0)])
def test_room_of_a_gpu(major: int, shared: int, hip: str | None, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None on GPUs that kernels are not known to compile for."""
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=shared * 1024)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    dispatch._room.cache_clear()
    try:
        assert dispatch.room(torch.device("cuda:0")) == found * 1024
        assert dispatch.room(torch.device("cpu")) == H100
    finally:
        dispatch._room.cache_clear()


def test_what_needs_more_than_there_is_runs_in_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "room", lambda device: A100)
    monkeypatch.setattr(dispatch, "_require_kernels", lambda x: None)
    x = torch.ones(1)
    with dispatch.implementation("triton"):
        assert dispatch.use_triton(x, x.dtype, fits=True) and dispatch.use_triton(x, x.dtype, fits=True, needs=A100)
        assert not dispatch.use_triton(x, x.dtype, fits=True, needs=H100)


def test_the_question_what_gpu_this_is_breaks_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def untraceable(kind: str, index: int | None) -> int:
        torch._dynamo.graph_break()
        return 7

    monkeypatch.setattr(dispatch, "_room", untraceable)
    compiled = torch.compile(lambda x: x + dispatch.room(x.device), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(())) == 7
