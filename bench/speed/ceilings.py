"""The best rates of the machine, measured in the same run: the roofline for the times."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.speed.clock import Timing


def measure(clock: Callable[..., Timing], device: str, dtype: torch.dtype, activation: int, quick: bool) -> dict[str, float]:
    """GB/s of a large copy and of a copy of one activation of this many elements (bytes read plus bytes written), and TFLOP/s of
    a large product, on random data, because zeros run faster."""
    gpu = device == "cuda"
    large = (2**29 if gpu else 2**26) >> (6 if quick else 0)
    side = (8192 if gpu else 1024) // (4 if quick else 1)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return {
        "copy_gbs": _copy(clock, device, large),
        "activation_copy_gbs": _copy(clock, device, activation * dtype.itemsize // 4),
        "matmul_tflops": 2 * side**3 / clock(lambda: left @ right).us / 1e6,
    }


def _copy(clock: Callable[..., Timing], device: str, elements: int) -> float:
    source = torch.randn(max(elements, 1), device=device)
    target = torch.empty_like(source)
    # Inside a graph a copy is the driver's own, which is not always the fastest: hence a kernel that reads and writes, too.
    us = min(clock(lambda: target.copy_(source)).us, clock(lambda: torch.neg(source, out=target)).us)
    return 2 * source.numel() * source.element_size() / us / 1e3


def floor_us(ceilings: dict[str, float], flops: float, moved: float) -> float:
    """A lower bound of the time: products at the rate of a large product, bytes at the rate of a large copy."""
    return max(flops / ceilings["matmul_tflops"] / 1e6, moved / ceilings["copy_gbs"] / 1e3)
