"""Dropout with cheap random numbers on a CPU: 16 bits for each element, four elements from each draw of torch's generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS = 65_536  # a rate is rounded to a multiple of 1 / STEPS


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        dropped = min(round(self.p * STEPS), STEPS - 1)
        if not self.training or not dropped or x.device.type != "cpu" or _is_traced():
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - STEPS // 2
        return x * kept.to(x.dtype).mul_(STEPS / (STEPS - dropped))


def _is_traced() -> bool:
    """Whether a compiler, tracer or function transform runs: these have rules for torch's own dropout."""
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return traced or torch._C._are_functorch_transforms_active()
