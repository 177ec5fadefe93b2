"""Position codes: sinusoidal, learned and rotary. Positions always count within a sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tokmix.core.segments import Segments

Code = Literal["none", "learned", "sinusoidal"]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Half precisions cannot count far, nor add many things up."""
    return torch.promote_types(dtype, torch.float32)


def count(length: int, position: Tensor | None, device: torch.device) -> Tensor:
    """The positions of the next `length` tokens: [length], or [B, length] for rows that are at `position` [B]."""
    steps = torch.arange(length, device=device)
    return steps if position is None else position[:, None] + steps


def within(segments: Segments | None, x: Tensor) -> Tensor:
    """Of the tokens of x [B, T, ...] in their own sequences: [B, T], or [T] where it is the same for all rows, which saves a code
    for each of them. Padding gets some position of the longest sequence."""
    if segments is None:
        return count(x.shape[1], None, x.device)
    return count(x.shape[1], None, x.device).clamp(max=max(0, segments.longest - 1)) if segments.unmoved else segments.positions


def _angles(positions: Tensor, half: int, dtype: torch.dtype) -> Tensor:
    """positions [...] -> [..., half], frequencies from 1 down to 1/10,000."""
    exponent = torch.arange(half, device=positions.device, dtype=dtype) / max(1, half)
    return positions[..., None].to(dtype) * 10_000.0**-exponent


def sinusoidal(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """positions [...] -> [..., dim]: sines in the first half, cosines in the second."""
    angles = _angles(positions, (dim + 1) // 2, at_least_float32(dtype))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :dim].to(dtype)


def turns(positions: Tensor, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """How far `rotate` turns heads of so many channels at positions [L] or [B, L]: cosines and sines, [L, half] or [B, 1, L, half]."""
    angles = _angles(positions, size // 2, at_least_float32(dtype))
    if angles.dim() == 3:
        angles = angles[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs of channels of x [B, H, L, E]; with an odd E the last channel stays as it is."""
    cos, sin = turned
    half = x.shape[-1] // 2
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, H, L, E], its channels turned by an angle that grows with position [L] or [B, L]."""
    return rotate(x, turns(positions, x.shape[-1], x.dtype))


class PositionCode(nn.Module):
    """A code to add to tokens: positions [...] -> [..., dim], or 0.0 for kind "none"."""

    def __init__(self, kind: Code, dim: int, max_len: int):
        super().__init__()
        self.kind, self.dim = kind, dim
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(max_len, dim))
            nn.init.normal_(self.table, std=0.02)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor | float:
        if self.kind == "none":
            return 0.0
        if self.kind == "sinusoidal":
            return sinusoidal(positions, self.dim, dtype)
        return self.table[positions].to(dtype)
