"""FNet (Lee-Thorp et al. 2022): the real part of a Fourier transform over tokens and channels, no parameters.

A padded or packed sequence gets the transform of its own length, all lengths in one batch, in one of two ways:

short rows   by matrix products with cosines and sines. More arithmetic, but few operations on real numbers: two large products and
             what torch.compile fuses. The other way is many passes over complex tensors.
long rows    by fast transforms of real numbers: Bluestein's identity jk = (j² + k² - (k - j)²) / 2 turns a transform of any length n
             into a convolution of one common length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokmix.core.mixer import Cost, register
from tokmix.core.positions import at_least_float32
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows
from tokmix.ops.dispatch import without_autocast
from tokmix.ops.fast_call import Context, unwatched

SHORT, NARROW = 128, 1024  # up to this length products are faster: docs/fnet.md has the measurement


def _angles(rows: int, columns: int, lengths: Tensor | int, like: Tensor) -> Tensor:
    """2π jk/n for j < rows, k < columns, n in lengths. jk is first reduced to within half a turn, exactly: float32 holds all whole
    numbers below 2**24. In integers torch 2.13's Inductor miscompiles `(j * k + n // 2) % n` on a CPU."""
    j, k = (torch.arange(size, device=like.device, dtype=like.dtype) for size in (rows, columns))
    product = j[:, None] * k
    turns = product - lengths * torch.floor(product / lengths + 0.5)
    return turns * (2 * torch.pi) / lengths


def fourier_by_products(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Re(F_L x F_D) of real x [S, L, D], zero behind each row's own length [S] (None: all are full); values behind it in
    the result are arbitrary.

    With C and S the cosines and sines it is C_L x C_D - S_L x S_D. Channel D - k has the same cosines as channel k and
    its sines with the other sign, so D columns hold all of x C_D and x S_D, and either product is done once for both.
    """
    _, L, D = x.shape
    pairs = (D - 1) // 2  # channels k and D - k; channel 0, and D/2 where D is even, are alone and have no sines
    over_channels = _angles(D, D - pairs, D, x)
    over_tokens = _angles(L, L, L if lengths is None else lengths.clamp(min=1)[:, None, None], x)
    waves = torch.cat([over_channels.cos(), over_channels[:, 1 : pairs + 1].sin()], dim=1)  # [D, D]
    cosines, sines = (x @ waves).split([D - pairs, pairs], dim=-1)
    even, odd = over_tokens.cos() @ cosines, over_tokens.sin() @ sines
    paired = even[..., 1 : pairs + 1]
    return torch.cat([even[..., :1], paired - odd, even[..., pairs + 1 :], (paired + odd).flip(-1)], dim=-1)


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


def fourier_fast(x: Tensor, lengths: Tensor | None) -> Tensor:
    """As `fourier_by_products`, by fast transforms of half of the channels: x is real, so Y[-j, -k] is the conjugate of Y[j, k]."""
    if not unwatched((x,)):
        return _by_real_transforms(x, lengths)
    return _Symmetric.apply(x, lengths)  # type: ignore[no-any-return, no-untyped-call]


def _by_real_transforms(x: Tensor, lengths: Tensor | None) -> Tensor:
    _, L, D = x.shape
    if lengths is None:
        half = torch.fft.rfft2(x, dim=(1, 2)).real  # [S, L, D // 2 + 1]
        behind = half[..., 1 : (D + 1) // 2].flip(1, 2).roll(1, 1)
    else:
        half = fourier_own_length(torch.fft.rfft(x, dim=-1), lengths).real
        n = lengths.clamp(min=1)[:, None]
        opposite = (n - torch.arange(L, device=x.device)) % n  # -j within each row's own length
        behind = half[..., 1 : (D + 1) // 2].flip(2)
        behind = behind.gather(1, opposite[..., None].expand_as(behind))
    return torch.cat([half, behind], dim=-1)


class _Symmetric(torch.autograd.Function):
    """The matrix of the whole transform is symmetric, so its gradient is the same transform of real numbers. autograd's own gradient would
    use complex numbers of full size."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, lengths: Tensor | None) -> Tensor:
        ctx.save_for_backward(lengths)
        return _by_real_transforms(x, lengths)

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (lengths,) = ctx.saved_tensors
        if lengths is None:
            return fourier_fast(dy, None), None
        inside = (torch.arange(dy.shape[1], device=dy.device) < lengths[:, None])[..., None]
        return torch.where(inside, fourier_fast(torch.where(inside, dy, 0), lengths), 0), None


@register("fnet")
class FNet(RowMixer):
    modes = frozenset({"bidirectional", "padded", "packed"})
    order = "T log T"
    mixes_channels = True

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        wide, lengths = x.to(at_least_float32(x.dtype)), None if rows is None else rows.lengths
        if not self._by_products(x.shape[1]) or (rows is None and x.device.type == "cpu"):  # faster there for whole rows of any length
            return fourier_fast(wide, lengths).to(x.dtype)
        with without_autocast(x):
            return fourier_by_products(wide, lengths).to(x.dtype)

    def _by_products(self, length: int) -> bool:
        if torch.compiler.is_exporting():  # an exported graph uses one way for all of its lengths: products if all are short
            from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

            return self.dim <= NARROW and statically_known_true(length <= SHORT)
        return self.dim <= NARROW and length <= SHORT

    def cost(self, length: int) -> Cost:
        """Short: two products with constants, and their cosines and sines. Long: a transform of n real points takes about
        2.5 n log2 n operations."""
        points = length * self.dim
        if self._by_products(length):
            products = 2 * points * (length + self.dim)
            return Cost(products, points + 2 * length**2 + self.dim**2, constant=products)
        return Cost(0, round(2.5 * points * math.log2(max(1, points))))
