"""Precision of products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Matrix products and convolutions on a GPU in "tf32" or "float32"."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Autocast for evaluation with float32 weights. On a CPU everything stays float32, because bfloat16 is not faster there."""
    if precision == "float32" or device.type != "cuda":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
