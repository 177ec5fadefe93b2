"""Launch of the forward kernels of HyperMLP, and what both passes share. `kernels/forward.py` describes the data flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime import JITFunction
from triton.runtime.errors import OutOfResources

from tokmix.ops.hyper_mlp.kernels import forward as kernels
from tokmix.ops.sizes import cdiv, next_power_of_2

SIDE = 64  # queries, and keys, of a tile
WIDEST = (256, 64)  # columns of v that a program holds: of 16-bit numbers, of float32
# Warps and pipeline stages of a program: the fastest on an H200.
SUMS, OUTPUT = (4, 3), (8, 3)
FITTED: dict[tuple[object, ...], tuple[int, int]] = {}  # stages and columns that were found to fit, by kernel


class Parts(NamedTuple):
    """A bank in the kernels' layout: A and Bᵀ [H, T, r], p [H, T] in float32, and the control [B, H, T, r] as it is."""

    down: Tensor | None
    up: Tensor | None
    diagonal: Tensor | None
    control: Tensor | None

    @property
    def rank(self) -> int:
        return 1 if self.down is None else self.down.shape[2]


def parts(down: Tensor | None, up: Tensor | None, diagonal: Tensor | None, control: Tensor | None) -> Parts:
    if down is None or up is None or diagonal is None or control is None:
        return Parts(None, None, None, None)
    return Parts(down.float().contiguous(), up.mT.float().contiguous(), diagonal.float().contiguous(), last_dim_contiguous(control))


def last_dim_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def padded(width: int) -> int:
    return max(16, next_power_of_2(width))


def strides(*tensors: Tensor | None) -> list[int]:
    """Strides of [B, H, T, n] tensors; the last one is 1."""
    return [stride for x in tensors for stride in ((0, 0, 0) if x is None else x.stride()[:3])]


def by_token(like: Tensor, make: Callable[..., Tensor] = torch.empty, dtype: torch.dtype | None = None) -> Tensor:
    """[B, H, T, n] that lies in memory as [B, T, H, n], so that joining the heads moves nothing."""
    B, H, T, n = like.shape
    return make(B, T, H, n, dtype=dtype or like.dtype, device=like.device).transpose(1, 2)


class LaunchSizes:
    """Sizes and constants that the kernels share."""

    def __init__(self, q: Tensor, v: Tensor, first: Parts, second: Parts, lag: bool):
        self.B, self.H, self.T, self.f = v.shape
        self.score_heads, self.e, self.device, self.dtype, self.lag = q.shape[1], q.shape[3], q.device, v.dtype, lag
        self.tiles = cdiv(self.T, SIDE)
        fine = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        # How factors are rounded: of scores and values, of gradients of scores and the second bank, where signs are decided.
        # float16 would lose what is smaller than its range.
        how = {torch.bfloat16: ("bf16", "bf16", "bf16x3"), torch.float16: ("fp16", "tf32", "tf32x3"), torch.float32: (fine, fine, fine)}
        self.values, self.loose, careful = how[v.dtype]
        self.constants: dict[str, int | bool | str] = {
            "E": self.e, "EP": padded(self.e), "F": self.f, "FP": min(padded(self.f), WIDEST[v.dtype == torch.float32]),
            "R1": first.rank, "RP1": padded(first.rank), "R2": second.rank, "RP2": padded(second.rank),
            "SIDE": SIDE, "GLU": self.score_heads == 2 * self.H, "LAG": lag,
            "VALUES": self.values, "LOOSE": self.loose, "CAREFUL": careful,
        }  # fmt: skip

    def launch(
        self, kernel: JITFunction, settings: tuple[int, int], grid: Callable[[int], tuple[int, ...]], *given: object, **more: int | str
    ) -> None:
        """grid: programs for a number of columns of v. If a program does not fit a multiprocessor, it is tried
        with fewer stages, then fewer columns; the setting that fits is remembered."""
        constants = {name: value for name, value in (self.constants | more).items() if name in kernel.arg_names}
        known = (kernel, settings, *constants.values())
        stages, columns = FITTED.get(known, (settings[1], int(constants.get("FP", 16))))
        while True:
            if "FP" in constants:
                constants["FP"] = columns
            try:
                kernel[grid(columns)](*given, **constants, num_warps=settings[0], num_stages=stages)
            except OutOfResources:
                if stages == 1 and columns == 16:
                    raise
                stages, columns = (stages - 1, columns) if stages > 1 else (settings[1], columns // 2)
            else:
                FITTED[known] = stages, columns
                return

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def sums(self, heads: int, bank: Parts) -> Tensor:
        """[B, heads, T, r], one row of sums for each query; empty without a bank."""
        return self.empty(self.B, heads, self.T, bank.rank) if bank.down is not None else self.empty(0)


def forward(
    q: Tensor, k: Tensor, v: Tensor, down1: Tensor | None, up1: Tensor | None, diagonal1: Tensor | None, control1: Tensor | None,
    down2: Tensor | None, up2: Tensor | None, diagonal2: Tensor | None, control2: Tensor | None, lag: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o [B, H, T, f], and for the backward pass u [B, Hq, T, r], y [B, H, T, r] and 1 / ‖h‖ [B, H, T]."""
    q, k, v = last_dim_contiguous(q), last_dim_contiguous(k), last_dim_contiguous(v)
    first, second = parts(down1, up1, diagonal1, control1), parts(down2, up2, diagonal2, control2)
    plan = LaunchSizes(q, v, first, second, lag)
    o, u, y, shrink = by_token(v), plan.sums(plan.score_heads, first), plan.sums(plan.H, second), plan.empty(plan.B, plan.H, plan.T)
    plan.launch(
        kernels.sums, SUMS, lambda columns: (plan.tiles, plan.B * plan.H),
        q, k, *first, second.down, second.up, u, y, shrink, plan.T, plan.H, *strides(q, k, first.control),
    )  # fmt: skip
    plan.launch(
        kernels.output, OUTPUT, lambda columns: (plan.tiles, plan.B * plan.H, cdiv(plan.f, columns)),
        q, k, v, *first[1:], *second[1:], u, y, shrink, o, plan.T, plan.H, *strides(q, k, v, first.control, second.control, o),
    )  # fmt: skip
    return o, u, y, shrink
