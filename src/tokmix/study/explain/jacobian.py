"""Which tokens a mixer combines: pseudo-attention for any mixer, true attention for attention mixers. For a mixer alone, or for each
layer of a model and the whole stack.

Pseudo-attention (Mai et al. 2023, section 4.7) of output token i to input token j is the norm of the Jacobian block
dy_i / dx_j. Instead of one backward pass per number of the output, copies of the sequence stand side by side in a
batch, and each row asks for the gradient of another number: rows never mix, so this works for every mixer and kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokmix.core import checks, positions
from tokmix.core.mixer import Mixer
from tokmix.core.model import Model
from tokmix.core.segments import Segments
from tokmix.layers.attention import Attention
from tokmix.layers.keyvalue import KeyValueMixer, visible
from tokmix.layers.relu_attention import ReluAttention
from tokmix.ops.hyper_mlp import relu_of_normalised

WEIGHTS: dict[str, str] = {Attention.kind: "softmax weights", ReluAttention.kind: "ReLU weights"}  # mixers with true attention
AT_ONCE = 2**22  # numbers of a [rows, T, T] or [rows, T, D] tensor: bounds the memory of a map of a model


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
    samples   None: exact, D backward rows for each token. A number: an estimate from that many random directions
              for each token, whose square is right on average
    rows      copies of a sequence in one batch
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
    """Number of output channels, which may differ from the input's."""
    first = torch.zeros(1, dtype=torch.long, device=x.device)
    return mix(x[:1], _take(segments, first)).shape[-1]


def _take(segments: Segments | None, rows: Tensor) -> Segments | None:
    """The segments of a batch that consists of these rows of another batch."""
    if segments is None:
        return None
    if segments.packed:
        return Segments(segments.ids[rows.to(segments.ids.device)])
    return Segments.from_mask(segments.mask[rows.to(segments.mask.device)])


@torch.no_grad()
def attention(mixer: Mixer, x: Tensor, segments: Segments | None = None) -> Tensor:
    """The weights of an `attention` or `relu_attention` mixer: [B, heads, T (reading), T (read)], zero at padding."""
    if mixer.kind not in WEIGHTS:
        known = ", ".join(WEIGHTS)
        raise ValueError(f"mixer {mixer.kind!r} has no attention weights; mixers that have them: {known}; pseudo_attention takes any")
    assert isinstance(mixer, KeyValueMixer)
    if segments is not None and segments.packed:
        raise ValueError("attention weights were asked for packed segments; give one sequence a row")
    part, rows = (x, None) if segments is None else segments.rows(x)
    at = positions.count(part.shape[1], None, x.device)
    q, k, _ = mixer._project(part, part, part, at, at, None)
    allowed = visible(at, part.shape[1], mixer.causal, mixer.window, rows)
    weights = _softmax(mixer, q, k, allowed) if isinstance(mixer, Attention) else _relu(q, k, allowed)  # [B, H, L, L]
    if segments is None:
        return weights
    readers = segments.unrows(weights.permute(0, 2, 3, 1))  # [B, T, L, H]: both token axes go back to their places
    return segments.unrows(readers.transpose(1, 2)).permute(0, 3, 2, 1)


def _softmax(mixer: Attention, q: Tensor, k: Tensor, allowed: Tensor | None) -> Tensor:
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if mixer.scale is None else mixer.scale)
    return (scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))).softmax(-1)


def _relu(q: Tensor, k: Tensor, allowed: Tensor | None) -> Tensor:
    scores = q @ k.mT
    return relu_of_normalised(scores if allowed is None else torch.where(allowed, scores, 0))


@dataclass(frozen=True)
class Map:
    """Which token reads which in one sequence.

    layer    counted from 1; None: the whole stack, from the embeddings to what the head reads
    mixer    its name, or the stack's
    what     'pseudo-attention', or the name of true attention's weights
    weights  [T, T], reader by read; of true attention the mean of the heads
    heads    [H, T, T] of true attention
    samples  of an estimate: random directions a token; None: exact
    """

    layer: int | None
    mixer: str
    what: str
    weights: Tensor
    heads: Tensor | None = None
    samples: int | None = None

    @property
    def title(self) -> str:
        place = "whole stack" if self.layer is None else f"layer {self.layer}, {self.mixer}"
        return f"{place}: {self.what}" + (f" (estimate from {self.samples} directions)" if self.samples is not None else "")


def model_maps(model: Model, ids: Tensor, *, layer: int | None = None, samples: int | None = None, seed: int = 0) -> list[Map]:
    """The maps of one sequence of ids [T]: each mixer on its own input, then the whole stack.
    layer: that one alone, counted from 1; 0: the whole stack alone. samples and their seed: as in pseudo_attention."""
    if layer is not None and not 0 <= layer <= len(model.layers):
        raise ValueError(f"layer={layer} is not one of this model's layers: 1 to {len(model.layers)}, or 0 for the whole stack")
    inputs = _inputs(model, ids[None])
    generator = torch.Generator().manual_seed(seed % 2**63)
    T, D = inputs[0].shape[1:]
    rows = max(1, min(512, AT_ONCE // (T * max(T, D))))

    def pseudo(mix: Callable[..., Tensor], x: Tensor) -> Tensor:
        return pseudo_attention(mix, x, samples=samples, generator=generator, rows=rows)[0]

    found = []
    for place, (one, x) in enumerate(zip(model.layers, inputs[1:], strict=True), 1):
        if layer in (None, place):
            found.append(Map(place, one.mixer.kind, "pseudo-attention", pseudo(one.mixer, x), samples=samples))
            if one.mixer.kind in WEIGHTS:
                heads = attention(one.mixer, x)[0]
                found.append(Map(place, one.mixer.kind, WEIGHTS[one.mixer.kind], heads.mean(0), heads))
    if not layer:
        found.append(Map(None, model.config.stack, "pseudo-attention", pseudo(_stack(model), inputs[0]), samples=samples))
    return found


@torch.no_grad()
def _inputs(model: Model, ids: Tensor) -> list[Tensor]:
    """The input of the stack, then the input of each mixer: [1, T, D] each."""
    caught: list[Tensor] = []
    watched = [model.layers[0], *(layer.mixer for layer in model.layers)]
    hooks = [module.register_forward_pre_hook(lambda module, given: caught.append(given[0])) for module in watched]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return caught


def _stack(model: Model) -> Callable[..., Tensor]:
    def through(x: Tensor, segments: Segments | None) -> Tensor:
        for layer in model.layers:
            x = layer(x, segments)
        return model.norm(x)

    return through
