"""A short convolution along the tokens, [B, T, C] -> [B, T, D], each token with its neighbours; what is outside counts as zero.

For the small models of the shapes task, whose convolutions are nearly all they do: on a GPU a kernel each way with the ReLU in it,
where torch has several, and some between them that change layouts. Single precision; products in TF32 where those of torch's
convolutions are (torch.backends.cudnn.allow_tf32).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.dispatch import use_triton
from tokmix.ops.sizes import within_32_bits

__all__ = ["convolve"]

WIDEST = 128  # channels of the output that a program holds
PIECE = 256  # tokens of a share of the weights' gradient


def convolve(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """weight [K, C, D], K odd: that of a torch.nn.Conv1d with its axes in the opposite order."""
    K, C, D = weight.shape
    assert K % 2 and x.shape[2] == C, (x.shape, weight.shape)
    single = x.dtype == weight.dtype == torch.float32
    if use_triton(x, x.dtype, fits=single and x.numel() > 0 and max(C, D) <= WIDEST and _countable(x, weight)):
        from reproduce.toy.convolve import launch

        return launch.convolve(x, weight, bias, relu)
    y = F.conv2d(x.mT[:, :, None], weight.permute(2, 1, 0)[:, :, None], bias, padding=(0, K // 2))[:, :, 0].mT
    return y.relu() if relu else y


def _countable(x: Tensor, weight: Tensor) -> bool:
    """Whether 32 bits are enough to count the numbers of a tensor: of x, of the output, and of the shares of the weights' gradient."""
    tokens, (K, C, D) = x.shape[0] * x.shape[1], weight.shape
    return all(within_32_bits(size, tokens) for size in (C, D)) and within_32_bits((K * C + 1) * D, tokens // PIECE + 1)
