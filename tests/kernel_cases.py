"""HyperMixing for the kernel tests: weights, the fused call, and the textbook it has to equal."""

from __future__ import annotations

from typing import TypedDict

import torch.nn.functional as F
from torch import Tensor

from tests.kernel_rule import Tensors, draw
from tokmix.core.segments import Segments
from tokmix.core.token_offsets import chunks_of
from tokmix.ops.hyper_mix import reference, select
from tokmix.ops.hyper_mix.reference import Net

Scales = tuple[Tensor | None, Tensor | None]


class Kind(TypedDict):
    H: int
    e: int
    k: int
    biased: bool
    tied: bool
    normed: bool
    coded: bool


def net_of(t: Tensors, second: str = "") -> Net:
    return Net(t["U" + second], t.get("b" + second), t["V" + second], t.get("c" + second))


def hyper_case(device: str, T: int, H: int, e: int, k: int, biased: bool, tied: bool, normed: bool, coded: bool) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"x": (3, T, H * e)}
    for second in ("",) if tied else ("", "2"):
        shapes |= {"U" + second: (H, e, e), "V" + second: (H, e, k)}
        shapes |= {"b" + second: (H, e), "c" + second: (H, k)} if biased else {}
    shapes |= {"gain": (H * e,), "bias": (H * e,)} if normed else {}
    return draw(device, **shapes, **({"tokens": (3, T, H * e)} if coded else {}))


def fused(t: Tensors, segments: Segments | None, scales: Scales) -> Tensor:
    norm = select.Norm(t["gain"], t["bias"], 1e-5) if "gain" in t else None
    chunks = None if segments is None else chunks_of(segments, 64)
    second = net_of(t, "2") if "U2" in t else None
    return select.mix(t["x"], net_of(t), second, tokens=t.get("tokens"), scale=scales[0], readout=scales[1], norm=norm, chunks=chunks)


def textbook(t: Tensors, segments: Segments | None, scales: Scales) -> Tensor:
    net_in = net_of(t)
    net_out = net_of(t, "2") if "U2" in t else net_in
    x, tokens = t["x"], t.get("tokens")
    if segments is not None:
        x, tokens = segments.rows(x)[0], None if tokens is None else segments.rows(tokens)[0]
    tokens = x if tokens is None else tokens
    scale, readout = scales
    y = reference.hyper_mix(tokens, tokens, x, net_in, net_out, None if scale is None else scale[:, None, None, None])
    y = y if readout is None else y * readout[:, None, None].to(y.dtype)
    y = F.layer_norm(y, y.shape[-1:], t["gain"], t["bias"], 1e-5) if "gain" in t else y
    return y if segments is None else segments.unrows(y)


HYPER: dict[str, Kind] = {
    "plain": {"H": 2, "e": 16, "k": 16, "biased": False, "tied": False, "normed": False, "coded": False},
    "tied": {"H": 2, "e": 16, "k": 24, "biased": True, "tied": True, "normed": True, "coded": False},
    "untied": {"H": 3, "e": 16, "k": 8, "biased": True, "tied": False, "normed": True, "coded": False},
    "coded": {"H": 1, "e": 20, "k": 33, "biased": True, "tied": True, "normed": True, "coded": True},
}
