"""The kernels of a convolution put together, with their gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from reproduce.toy.convolve import PIECE
from reproduce.toy.convolve.kernels import sliding_window as kernels
from tokmix.ops.dispatch import INTERPRETED
from tokmix.ops.fast_call import Context, on_its_device
from tokmix.ops.sizes import cdiv, next_power_of_2

ROWS, SUM = (64, 256) if not INTERPRETED else (256, 4096)  # tokens of a tile, numbers of a sum


@on_its_device
def convolve(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return _Convolve.apply(x.contiguous(), weight.contiguous(), bias, relu)


def _precision() -> str:
    """tf32x3: as exact as single precision, by three products of halves."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _tile(size: int) -> int:
    return min(64, max(16, next_power_of_2(size)))


def _slide(x: Tensor, gate: Tensor | None, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Without a bias: backwards."""
    (B, T, C), K, back = x.shape, weight.shape[0], bias is None
    D = weight.shape[1] if back else weight.shape[2]
    y = x.new_empty(B, T, D)
    kernels.slide[(cdiv(B * T, ROWS),)](
        x, x if gate is None else gate, weight, weight if bias is None else bias, y, B * T, T,
        C, D, max(16, next_power_of_2(D)), _tile(K * C), ROWS, K, back, gate is not None, relu, _precision(),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def _weigh(x: Tensor, dy: Tensor, gate: Tensor | None, K: int) -> tuple[Tensor, Tensor]:
    """-> dW [K, C, D], db [D]"""
    (B, T, C), D = x.shape, dy.shape[2]
    pieces, tile, size = cdiv(B * T, PIECE), _tile(K * C), K * C * D + D
    parts, total = x.new_empty(pieces, size), x.new_empty(size)
    kernels.weigh[(pieces, cdiv(K * C, tile))](
        x, dy, dy if gate is None else gate, parts, B * T, T, PIECE,
        C, D, max(16, next_power_of_2(D)), tile, min(ROWS, PIECE), K, gate is not None, _precision(),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    kernels.add[(cdiv(size, SUM),)](parts, total, pieces, size, SUM, num_warps=4)
    return total[: K * C * D].view(K, C, D), total[K * C * D :]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        y = _slide(x, None, weight, bias, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        dy = dy.contiguous()
        dx = _slide(dy, gate, weight, None, False) if ctx.needs_input_grad[0] else None
        dw, db = _weigh(x, dy, gate, weight.shape[0])
        return dx, dw, db, None
