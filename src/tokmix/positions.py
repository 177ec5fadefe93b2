"""Position codes: sinusoidal, learned and rotary. Positions always count within a sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tokmix.segments import Segments

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
    for each of them. What stands at padding is some position of the longest sequence."""
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


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of channels of x [B, H, L, E] by an angle that grows with position [L] or [B, L]; with an odd E
    the last channel stays as it is."""
    half = x.shape[-1] // 2
    angles = _angles(positions, half, at_least_float32(x.dtype))
    if angles.dim() == 3:
        angles = angles[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


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
