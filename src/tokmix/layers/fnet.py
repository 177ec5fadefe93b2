"""FNet (Lee-Thorp et al. 2022): the real part of a Fourier transform over tokens and channels, no parameters.

A padded or packed sequence gets the transform of its own length, all lengths in one batch: Bluestein's identity
jk = (j² + k² - (k - j)²) / 2 turns a transform of any length n into a convolution of one common length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokmix.mixer import Cost, register
from tokmix.positions import at_least_float32
from tokmix.rowmixer import RowMixer
from tokmix.segments import Rows


def _chirp(steps: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(-iπ k²/n) for k in steps and n in lengths [S, 1]; k² is reduced mod 2n in whole numbers, so that no
    precision is lost at large k."""
    angle = (steps * steps % (2 * lengths)).to(dtype) * (-torch.pi / lengths.to(dtype))
    return torch.polar(torch.ones_like(angle), angle)


def fourier_own_length(x: Tensor, lengths: Tensor) -> Tensor:
    """The transform over dim 1 of complex x [S, L, D], zero behind each row's own length [S]; what comes out behind
    it does not matter."""
    L = x.shape[1]
    size = 1 << (2 * L - 1).bit_length()  # room for a linear convolution, and a fast length
    steps = torch.arange(L, device=x.device)
    chirp = _chirp(steps, lengths.clamp(min=1)[:, None], x.real.dtype)  # [S, L]
    back = chirp.conj()
    kernel = x.new_zeros(x.shape[0], size)
    kernel[:, :L] = back
    kernel[:, size - L + 1 :] = back[:, 1:].flip(1)
    spread = torch.fft.fft(x * chirp[..., None], n=size, dim=1)
    return torch.fft.ifft(spread * torch.fft.fft(kernel)[..., None], dim=1)[:, :L] * chirp[..., None]


@register("fnet")
class FNet(RowMixer):
    modes = frozenset({"bidirectional", "padded", "packed"})
    order = "T log T"
    mixes_channels = True

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        wide = torch.fft.fft(x.to(at_least_float32(x.dtype)), dim=-1)
        over_tokens = torch.fft.fft(wide, dim=1) if rows is None else fourier_own_length(wide, rows.lengths)
        return over_tokens.real.to(x.dtype)

    def cost(self, length: int) -> Cost:
        """A transform of n points takes about 5 n log2 n operations."""
        points = length * self.dim
        return Cost(0, round(5 * points * math.log2(points)) if points > 1 else 0, 0)
