"""Products with weights on a CPU. torch hands float32 to MKL, which uses half of an AMD CPU's width; oneDNN, in torch too, uses all of it.

On another CPU, dtype or device, and wherever something watches what torch computes (tracing, counting FLOPs, functional transforms,
forward-mode gradients), torch's own product runs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

FEWEST = 8  # rows of x from which the call pays


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] -> x Wᵀ + b [..., N]"""
    if not _pays(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)):
        return _OneDnn.apply(x, weight, bias)
    return _one_dnn(x, weight, bias)


def _pays(x: Tensor, weight: Tensor) -> bool:
    plain = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    if not (
        plain and x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu" and _is_amd() and _has_one_dnn()
    ):
        return False
    watched = (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    )
    return not watched and x.numel() >= FEWEST * weight.shape[1] and weight.numel() > 0


@cache
def _has_one_dnn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def _one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _one_dnn(x, weight, bias)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override, no-untyped-def]
        x, weight = ctx.saved_tensors
        rows, given = dy.flatten(0, -2), x.flatten(0, -2)
        product = F.linear if torch.is_grad_enabled() else _one_dnn  # a gradient of this gradient
        dx = product(dy, weight.t()) if ctx.needs_input_grad[0] else None
        dweight = product(rows.t(), given.t()) if ctx.needs_input_grad[1] else None
        return dx, dweight, rows.sum(0) if ctx.needs_input_grad[2] else None
