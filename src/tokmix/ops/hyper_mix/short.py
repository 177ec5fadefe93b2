"""HyperMixing of short sequences, put together: one kernel each way, and the norm. The generated matrices come from outside."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokmix.ops import dispatch, flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.dispatch import H100
from tokmix.ops.hyper_mix.kernels import layer_norm
from tokmix.ops.hyper_mix.kernels import short_sequences as kernels
from tokmix.ops.hyper_mix.launch import KINDS
from tokmix.ops.sizes import cdiv, next_power_of_2


class Tile(NamedTuple):
    """Of a program: channels, generated units at a time, warps, stages of its loop."""

    channels: int
    units: int
    warps: int
    stages: int


# By the longest sequence, and whether numbers have 16 bits. Up to 64 tokens of 16 bits: the fastest of those tried on an H200
# (bench/results.jsonl#short_h200). Else the largest tiles that spill (next to) no register compiled for one (triton 3.6): with all
# channels of a head in one, the gradients of its weights need no adding up.
FORWARD = {
    True: {16: Tile(128, 64, 4, 2), 32: Tile(64, 64, 4, 2), 64: Tile(64, 64, 4, 2), 128: Tile(128, 64, 8, 2)},
    False: {16: Tile(128, 32, 4, 2), 32: Tile(128, 32, 4, 2), 64: Tile(128, 32, 8, 2), 128: Tile(64, 32, 8, 2)},
}
BACKWARD = {
    True: {16: Tile(256, 64, 8, 2), 32: Tile(256, 64, 8, 2), 64: Tile(256, 64, 8, 2), 128: Tile(256, 32, 8, 2)},
    False: {16: Tile(64, 32, 4, 2), 32: Tile(64, 32, 4, 2), 64: Tile(64, 32, 4, 1), 128: Tile(32, 16, 4, 1)},
}
# On GPUs with less room than an H100: compiled for them alone, not timed.
BACKWARD_SMALL = {
    True: {16: Tile(128, 64, 4, 2), 32: Tile(128, 64, 4, 2), 64: Tile(128, 32, 4, 2), 128: Tile(64, 32, 4, 1)},
    False: {16: Tile(64, 32, 4, 2), 32: Tile(32, 32, 4, 2), 64: Tile(32, 16, 4, 1)},
}


class LaunchSizes:
    """The sizes of x [B, T, D] and w [H, B * T, k] as arguments of every kernel."""

    def __init__(self, x: Tensor, w: Tensor, table: Tensor | None, longest: int, tiles: dict[bool, dict[int, Tile]]):
        B, self.T, D = x.shape
        self.heads, self.total, self.k = w.shape
        self.e = D // self.heads
        self.sequences = B if table is None else table.shape[0]
        self.tokens = max(16, next_power_of_2(longest))
        self.kind = KINDS[x.dtype]
        most = tiles[x.dtype.itemsize == 2][self.tokens]
        fit = lambda size, width: min(size, max(16, next_power_of_2(width)))
        self.tile = most._replace(channels=fit(most.channels, self.e), units=fit(most.units, self.k))
        self.tile = self.tile._replace(warps=max(4, most.warps * self.tile.channels // most.channels))
        self.tiles = cdiv(self.e, self.tile.channels)
        self.grid = (self.sequences, self.heads, self.tiles)

    def constants(self, scale: Tensor | None, readout: Tensor | None) -> tuple[object, ...]:
        """The constants at the end of a kernel's arguments."""
        one = lambda factors: factors is None or factors.shape[0] == 1
        # tf32x3: as exact as single precision, by three products of halves.
        precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        sizes = (self.heads, self.e, self.k, one(scale), one(readout), self.tokens, self.tile.channels, self.tile.units)
        return *sizes, self.kind, precision

    @property
    def how(self) -> dict[str, int]:
        return {"num_warps": self.tile.warps, "num_stages": self.tile.stages}


def _float(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.float().contiguous()


def forward(
    x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, longest: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x [B, T, D], w1, w2 [H, B * T, k] (w2 None: the same) -> y, and for the backward pass, where there is a norm, its input and
    the means and 1 / deviations of its rows."""
    x, w1 = x.contiguous(), w1.contiguous()
    w2, table = None if w2 is None else w2.contiguous(), None if table is None else table.contiguous()
    scale, readout = _float(scale), _float(readout)
    plan = LaunchSizes(x, w1, table, longest, FORWARD)
    new = torch.empty if full else torch.zeros
    z = new(x.shape, dtype=x.dtype, device=x.device)
    # With a norm, rows that hold a token are marked by a 1 in the tensor of 1 / deviation.
    rstd = new(plan.total if gain is not None else 0, dtype=torch.float32, device=x.device)
    kernels.short_forward[plan.grid](
        x, w1, w2, table, scale, readout, z, None if full or gain is None else rstd, plan.T, plan.total,
        *plan.constants(scale, readout), **plan.how,
    )  # fmt: skip
    if gain is None or bias is None:
        return z, x.new_empty(0), torch.empty_like(rstd), rstd
    y, mean = layer_norm.forward(z, gain, bias, eps, rstd, not full)
    return y, z, mean, rstd


def backward(
    dy: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, x: Tensor, w1: Tensor, w2: Tensor | None, scale: Tensor | None,
    readout: Tensor | None, gain: Tensor | None, bias: Tensor | None, eps: float, table: Tensor | None, longest: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """z, mean, rstd: from `forward`. Returns the gradients of x, w1 (of both where w2 is None), w2 and the norm [2, D]."""
    x, w1 = x.contiguous(), w1.contiguous()
    w2, table = None if w2 is None else w2.contiguous(), None if table is None else table.contiguous()
    scale, readout = _float(scale), _float(readout)
    if gain is None:
        dz, norm = dy.contiguous(), x.new_empty(0, x.shape[2], dtype=torch.float32)
    else:
        dz, norm = layer_norm.backward(dy, z, gain, mean, rstd)
    plan = LaunchSizes(x, w1, table, longest, BACKWARD if dispatch.room(x.device) >= H100 else BACKWARD_SMALL)
    new = torch.empty if full else torch.zeros
    dx = new(x.shape, dtype=x.dtype, device=x.device)
    # Several tiles of channels: each writes its part, and sums stay in float32.
    wide = x.dtype if plan.tiles == 1 else torch.float32
    parts = [new((plan.tiles, *w.shape), dtype=wide, device=x.device) for w in (w1, w2) if w is not None]
    kernels.short_backward[plan.grid](
        x, dz, w1, w2, table, scale, readout, dx, parts[0], None if w2 is None else parts[1], plan.T, plan.total,
        *plan.constants(scale, readout), **plan.how,
    )  # fmt: skip
    dw = [part[0] if plan.tiles == 1 else part.sum(0).to(x.dtype) for part in parts]
    return dx, dw[0], x.new_empty(0) if w2 is None else dw[1], norm
