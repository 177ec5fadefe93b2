"""Which tokens a mixer brings together: pseudo-attention for any of them, true attention where there is one.

Pseudo-attention (Mai et al. 2023, section 4.7) of output token i to input token j is the norm of the Jacobian block
dy_i / dx_j. Instead of one backward pass per number of the output, copies of the sequence stand side by side in a
batch, and each row asks for the gradient of another number: rows never mix, so this works for every mixer and kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokmix import checks, positions
from tokmix.layers.attention import Attention
from tokmix.layers.keyvalue import visible
from tokmix.mixer import Mixer
from tokmix.segments import Segments


def pseudo_attention(
    mix: Callable[..., Tensor],
    x: Tensor,
    segments: Segments | None = None,
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    rows: int = 512,
) -> Tensor:
    """x [B, T, D] -> [B, T, T]: the Frobenius norm of d mix(x)[b, i] / d x[b, j], at [b, i, j].

    mix       a mixer, or any function of (x, segments) that treats every row of a batch alone and draws no numbers
    samples   None: exact, D backward rows for each token. A number: an estimate from so many random directions
              for each token, whose square is right on average
    rows      how many copies of a sequence stand in a batch at once
    """
    if x.dim() != 3:
        raise ValueError(f"pseudo_attention was given a tensor of shape {list(x.shape)}; it takes [B, T, D]")
    checks.at_least("rows", rows, 1)
    if samples is not None:
        checks.at_least("samples", samples, 1)
    x = x.detach()
    B, T, _ = x.shape
    each = _width(mix, x, segments) if samples is None else samples
    squares = x.new_zeros(B * T, T)
    for ask in torch.arange(B * T * each, device=x.device).split(rows):
        token = ask // each  # [rows], whose gradient a row asks for, counted over the whole batch
        which = None if samples is not None else ask % each
        gradients = _gradients(mix, x, segments, token, which, generator)
        squares.index_add_(0, token, gradients.square().sum(-1))
    return (squares / (1 if samples is None else samples)).sqrt().view(B, T, T)


def _gradients(
    mix: Callable[..., Tensor], x: Tensor, segments: Segments | None, token: Tensor, which: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """Row r: the gradient of channel which[r] (or of a random direction) of output token[r]. [rows, T, D]"""
    b, i = token // x.shape[1], token % x.shape[1]
    copies = x[b].requires_grad_()
    row = torch.arange(len(token), device=x.device)
    with torch.enable_grad():
        y = mix(copies, _take(segments, b))[row, i]  # [rows, E]
        if which is None:
            asked = (y * torch.randn(y.shape, generator=generator).to(y)).sum()
        else:
            asked = y[row, which].sum()
        (gradients,) = torch.autograd.grad(asked, copies)
    return gradients


@torch.no_grad()
def _width(mix: Callable[..., Tensor], x: Tensor, segments: Segments | None) -> int:
    """The channels of the output, which need not be those of the input."""
    first = torch.zeros(1, dtype=torch.long, device=x.device)
    return mix(x[:1], _take(segments, first)).shape[-1]


def _take(segments: Segments | None, rows: Tensor) -> Segments | None:
    """The segments of a batch made of those rows of the old one."""
    if segments is None:
        return None
    if segments.packed:
        return Segments(segments.ids[rows.to(segments.ids.device)])
    return Segments.from_mask(segments.mask[rows.to(segments.mask.device)])


@torch.no_grad()
def attention(mixer: Mixer, x: Tensor, segments: Segments | None = None) -> Tensor:
    """The softmax weights of an `attention` mixer: [B, heads, T, T], reader by read, zero at padding."""
    if mixer.kind != Attention.kind:
        raise ValueError(
            f"mixer {mixer.kind!r} has no attention weights; mixers that have them: {Attention.kind}; pseudo_attention takes any"
        )
    assert isinstance(mixer, Attention)
    if segments is not None and segments.packed:
        raise ValueError("attention weights were asked for packed segments; give one sequence a row")
    part, rows = (x, None) if segments is None else segments.rows(x)
    at = positions.count(part.shape[1], None, x.device)
    q, k, _ = mixer._project(part, part, part, at, at, None)
    scale = q.shape[-1] ** -0.5 if mixer.scale is None else mixer.scale
    scores = q @ k.mT * scale  # [B, H, L, L]
    allowed = visible(at, part.shape[1], mixer.causal, mixer.window, rows)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    weights = scores.softmax(-1)
    if segments is None:
        return weights
    readers = segments.unrows(weights.permute(0, 2, 3, 1))  # [B, T, L, H]: both token axes go back to their places
    return segments.unrows(readers.transpose(1, 2)).permute(0, 3, 2, 1)
