"""Sizes of grids and tiles. Triton has the same functions, which take many times as long."""

from __future__ import annotations

DEEPEST = 65535  # programs that fit a CUDA grid along its second and its third axis


def cdiv(whole: int, part: int) -> int:
    return -(-whole // part)


def within_32_bits(stride: int, count: int) -> bool:
    """Whether offsets of this size fit the 32 bits that kernels use."""
    return stride * count < 2**31


def next_power_of_2(n: int) -> int:
    assert n >= 1
    return 1 << (n - 1).bit_length()
