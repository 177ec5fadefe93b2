"""Position codes: sinusoidal, learned and rotary. A position is that of a token within its own sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tokmix.core.segments import Segments

Code = Literal["none", "learned", "sinusoidal"]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """For counts and long sums, which half precision cannot represent."""
    return torch.promote_types(dtype, torch.float32)


def count(length: int, position: Tensor | None, device: torch.device) -> Tensor:
    """The positions of the next `length` tokens: [length], or [B, length] for rows that are at `position` [B]."""
    steps = torch.arange(length, device=device)
    return steps if position is None else position[:, None] + steps


def within(segments: Segments | None, x: Tensor) -> Tensor:
    """Positions of the tokens of x [B, T, ...] within their sequences: [B, T], or [T] if all rows have the same, so that their codes
    are computed once. Padding gets some position of the longest sequence."""
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
    """Cosines and sines for `rotate` of heads with `size` channels, at positions [L] or [B, L]: [L, half] or [B, 1, L, half]."""
    angles = _angles(positions, size // 2, at_least_float32(dtype))
    if angles.dim() == 3:
        angles = angles[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, H, L, E] with its pairs of channels rotated; with an odd E the last channel is not changed."""
    cos, sin = turn
    half = x.shape[-1] // 2
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, H, L, E] with its pairs of channels rotated by angles that grow with the position [L] or [B, L]."""
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
