"""The Triton kernels against float64: forward and every gradient, as exact as plain torch in the same dtype.

On a CPU they run in Triton's interpreter, which has to be switched on before Python starts: `make test-all` does so for every
kernel file, `test_in_the_interpreter` for a few. On a GPU: pytest -m gpu tests/ops
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernel_cases import HYPER, fused, hyper_case, textbook
from tests.kernel_rule import (
    DTYPES,
    Seen,
    Tensors,
    at,
    by_sequence,
    check,
    draw,
    each_device,
    each_layout,
    few_programs,  # noqa: F401  (a fixture for every test)
    with_nan,
)
from tokmix.core.segments import Segments
from tokmix.core.token_offsets import places_of
from tokmix.ops import dispatch
from tokmix.ops.shift_mix import reference as shift_reference
from tokmix.ops.shift_mix import select as shift

# A quick look at the interpreter for `make test`. `make test-all` runs every kernel file there, spread over all cores.
INTERPRETED = ["test_decode_kernel.py", "test_linear_attention_kernel.py", "test_rounding.py", "test_rotary.py"]


@pytest.mark.skipif(not dispatch.HAS_TRITON, reason="triton is not installed")
@pytest.mark.skipif(dispatch.INTERPRETED, reason="already in the interpreter")
@pytest.mark.parametrize("file", INTERPRETED)
def test_in_the_interpreter(file: str) -> None:
    path = str(Path(__file__).with_name(file))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "not gpu", path]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]


# ---------------------------------------------------------------- shift_mix
SHIFTS = [(4, 4, 4), (1, 5, 2), (64, 64, 64)]  # one for all heads, one for each, farther than any sequence reaches


def weights_of(t: Tensors) -> list[Tensor]:
    return [t[name] for name in "abc" if name in t]


def mixed_by_rows(x: Tensor, t: Tensors, shifts: tuple[int, ...], segments: Segments | None) -> Tensor:
    def body(part: Tensor) -> Tensor:
        heads = part.unflatten(-1, (len(shifts), -1))
        others = [shift_reference.partners(heads, shifts, sign) for sign in (1, -1)[: len(weights_of(t)) - 1]]
        return shift_reference.weighted(heads, others, weights_of(t)).flatten(2)

    return by_sequence(body, x, segments)


def shift_case(
    device: str, shifts: tuple[int, ...], both_ways: bool, width: int, layout: str
) -> tuple[Tensors, Segments | None, dict[str, Tensor | None]]:
    segments = at(device, layout)
    H = len(shifts)
    shapes = dict.fromkeys("abc" if both_ways else "ab", (H, width))
    given = draw(device, x=(3, 40, H * 7), **shapes)
    given["x"] = with_nan(given["x"], segments)
    places = None if segments is None else places_of(segments)
    assert segments is None or places is not None
    return given, segments, {"places": places}


@each_device
@each_layout
@pytest.mark.parametrize("shifts", SHIFTS, ids=str)
@pytest.mark.parametrize(("both_ways", "width"), [(False, 7), (True, 7), (True, 1)], ids=["vector", "vector-both", "ab-both"])
def test_shift_mix(device: str, dtype: torch.dtype, layout: str, shifts: tuple[int, ...], both_ways: bool, width: int) -> None:
    given, segments, where = shift_case(device, shifts, both_ways, width, layout)
    check(
        lambda t: shift.shift_mix(t["x"], weights_of(t), shifts, **where),
        lambda t: mixed_by_rows(t["x"], t, shifts, segments),
        given,
        dtype,
        "shift_mix",
        None if segments is None else segments.mask,
    )


@each_device
@each_layout
@pytest.mark.parametrize("shifts", SHIFTS, ids=str)
@pytest.mark.parametrize(("both_ways", "width"), [(False, 7), (True, 1)], ids=["vector", "ab-both"])
def test_norm_shift_mix(device: str, dtype: torch.dtype, layout: str, shifts: tuple[int, ...], both_ways: bool, width: int) -> None:
    given, segments, where = shift_case(device, shifts, both_ways, width, layout)
    D = given["x"].shape[2]
    given |= draw(device, gain=(D,), bias=(D,))

    def plain(t: Tensors) -> Tensor:
        mixed = by_sequence(lambda part: F.layer_norm(part, (D,), t["gain"], t["bias"], 1e-5), t["x"], segments)
        return t["x"] + mixed_by_rows(mixed, t, shifts, segments)

    check(
        lambda t: shift.norm_shift_mix(t["x"], weights_of(t), t["gain"], t["bias"], 1e-5, shifts, **where),
        plain,
        given,
        dtype,
        "norm_shift_mix",
        None if segments is None else segments.mask,
        residual=True,
    )


@each_device
@each_layout
@pytest.mark.parametrize("shifts", SHIFTS, ids=str)
@pytest.mark.parametrize("both_ways", [False, True], ids=["causal", "both"])
def test_gate_shift_mix(device: str, dtype: torch.dtype, layout: str, shifts: tuple[int, ...], both_ways: bool) -> None:
    given, segments, where = shift_case(device, shifts, False, 7, layout)
    H = len(shifts)
    given = {"x": given["x"], **draw(device, W=(H, 7, 7), c=(H, 7))}

    def plain(t: Tensors) -> Tensor:
        def body(part: Tensor) -> Tensor:
            heads = part.unflatten(-1, (H, -1))
            others = [shift_reference.partners(heads, shifts, sign) for sign in (1, -1)[: 1 + both_ways]]
            return shift_reference.gated(heads, others, t["W"], t["c"], both=False).flatten(2)

        return by_sequence(body, t["x"], segments)

    check(
        lambda t: shift.gate_shift_mix(t["x"], t["W"], t["c"], shifts, both_ways=both_ways, **where),
        plain,
        given,
        dtype,
        "gate_shift_mix",
        None if segments is None else segments.mask,
    )


@each_device
@each_layout
@pytest.mark.parametrize("shifts", SHIFTS, ids=str)
@pytest.mark.parametrize("both_ways", [False, True], ids=["causal", "both"])
def test_matrix_shift_mix(device: str, dtype: torch.dtype, layout: str, shifts: tuple[int, ...], both_ways: bool) -> None:
    given, segments, where = shift_case(device, shifts, False, 7, layout)
    H, names = len(shifts), ["U", "V", "W"][: 2 + both_ways]
    given = {"x": given["x"], **draw(device, **dict.fromkeys(names, (H, 7, 7)))}

    def plain(t: Tensors) -> Tensor:
        def body(part: Tensor) -> Tensor:
            heads = part.unflatten(-1, (H, -1))
            others = [shift_reference.partners(heads, shifts, sign) for sign in (1, -1)[: 1 + both_ways]]
            return shift_reference.matrix(heads, others, [t[name] for name in names]).flatten(2)

        return by_sequence(body, t["x"], segments)

    check(
        lambda t: shift.matrix_shift_mix(t["x"], [t[name] for name in names], shifts, **where),
        plain,
        given,
        dtype,
        "matrix_shift_mix",
        None if segments is None else segments.mask,
    )


@each_device
@pytest.mark.parametrize(("B", "T", "D"), [(1, 1, 1), (3, 1, 8), (1, 5, 1100), (2, 3, 33)])
def test_shift_sizes(device: str, B: int, T: int, D: int) -> None:
    given = draw(device, x=(B, T, D), a=(1, D), b=(1, D))
    norm = draw(device, gain=(D,), bias=(D,))
    check(
        lambda t: shift.shift_mix(t["x"], [t["a"], t["b"]], (1,)),
        lambda t: mixed_by_rows(t["x"], t, (1,), None),
        given,
        torch.float32,
        "shift_mix",
    )
    if D > 1:  # the norm of a single channel is zero, and so is its gradient
        check(
            lambda t: shift.norm_shift_mix(t["x"], [t["a"], t["b"]], t["gain"], t["bias"], 1e-5, (1,)),
            lambda t: t["x"] + mixed_by_rows(F.layer_norm(t["x"], (D,), t["gain"], t["bias"], 1e-5), t, (1,), None),
            given | norm,
            torch.float32,
            "norm_shift_mix",
        )


# ---------------------------------------------------------------- hyper_mix
@each_device
@each_layout
@pytest.mark.parametrize("kind", HYPER)
def test_hyper_mix(device: str, dtype: torch.dtype, layout: str, kind: str) -> None:
    segments = at(device, layout)
    given = hyper_case(device, 40, **HYPER[kind])
    for name in ("x", "tokens") if kind == "coded" else ("x",):
        given[name] = with_nan(given[name], segments)
    mask = None if segments is None else segments.mask
    check(lambda t: fused(t, segments, (None, None)), lambda t: textbook(t, segments, (None, None)), given, dtype, "hyper_mix", mask)


@each_device
@pytest.mark.parametrize("layout", ["whole", "packed"])
def test_hyper_mix_scaled(device: str, layout: str) -> None:
    segments = at(device, layout)
    S = 3 if segments is None else len(segments.lengths)
    scales = (torch.rand(S, device=device) + 0.5, torch.rand(S, device=device) + 0.5)
    given = hyper_case(device, 40, **HYPER["untied"] | {"normed": False})
    given["x"] = with_nan(given["x"], segments)
    mask = None if segments is None else segments.mask
    check(lambda t: fused(t, segments, scales), lambda t: textbook(t, segments, scales), given, torch.float32, "hyper_mix", mask)


@each_device
@pytest.mark.parametrize(("T", "H", "e", "k"), [(33, 1, 1, 1), (200, 2, 17, 5), (130, 1, 64, 70)])
def test_hyper_sizes(device: str, T: int, H: int, e: int, k: int) -> None:
    given = hyper_case(device, T, H, e, k, biased=True, tied=False, normed=False, coded=False)
    check(lambda t: fused(t, None, (None, None)), lambda t: textbook(t, None, (None, None)), given, torch.float32, "hyper_mix")


@each_device
@pytest.mark.parametrize("tied", [False] if dispatch.INTERPRETED else [False, True])
@pytest.mark.parametrize("dtype", DTYPES[1:2] if dispatch.INTERPRETED else DTYPES[1:], ids=str)
def test_hyper_mix_of_long_sequences_with_much_in_common(device: str, dtype: torch.dtype, tied: bool) -> None:
    """Every error that tokens share adds up over them: sums rounded too early, numbers cut off instead of rounded."""
    given = hyper_case(device, 512, 2, 20, 40, biased=True, tied=tied, normed=True, coded=False)
    given["x"] += 0.5
    check(lambda t: fused(t, None, (None, None)), lambda t: textbook(t, None, (None, None)), given, dtype, "hyper_mix")


@each_device
@pytest.mark.parametrize("layout", ["whole", "packed"])
def test_hyper_mix_of_many_pieces(device: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of a sequence at a time, not all of them in the last turn."""
    from tokmix.ops.hyper_mix import launch

    monkeypatch.setattr(launch, "piece_rows", launch.piece_rows.__wrapped__)
    for name, setting in {"MANY": 0, "ADD_MANY": (2, 64), "LONGEST": 64}.items():
        monkeypatch.setattr(launch, name, setting)
    segments = None if layout == "whole" else Segments.from_lengths([[70, 90], [170], [1, 66, 90]], 170).to(device)
    given = hyper_case(device, 170, 2, 20, 40, biased=True, tied=False, normed=True, coded=False)
    given["x"] = with_nan(given["x"], segments)
    mask = None if segments is None else segments.mask
    ways = [lambda t, way=way: way(t, segments, (None, None)) for way in (fused, textbook)]
    check(*ways, given, torch.float32, "hyper_mix", mask)


@each_device
def test_hyper_mix_with_a_zero_gain(device: str) -> None:
    """The norm's gradient must not be taken from the output by dividing by its gain."""
    given = hyper_case(device, 40, **HYPER["tied"])
    given["gain"][::3] = 0
    check(lambda t: fused(t, None, (None, None)), lambda t: textbook(t, None, (None, None)), given, torch.float32, "hyper_mix")


def test_heads_too_wide_or_rows_too_short_fall_back() -> None:
    for T, e in ((8, 16), (40, 130)):
        given = {name: x.float() for name, x in hyper_case("cpu", T, 1, e, 8, True, True, True, False).items()}
        with Seen() as seen:
            y = fused(given, None, (None, None))
        assert not seen.ours
        torch.testing.assert_close(y, textbook(given, None, (None, None)), rtol=1e-4, atol=1e-4)
