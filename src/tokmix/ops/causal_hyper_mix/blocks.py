"""Block-causal HyperMixing in plain torch (ours): GELU once per block of tokens, not per token, so that everything is a matrix product.

With b the last border before t, H_b and n_b the exact scan's state and count there, Λ_t the product of λ from behind b to t:

    y_t = Λ_t c(n_t)/c(n_b) GELU(c(n_b) H_b)ᵀ w2_t  +  ½ c(n_t) Σ_{b<s≤t} Λ_t/Λ_s (w1_s · w2_t) v_s

That is the exact form's GELU(c(n_t) H_t)ᵀ w2_t with GELU(a z) taken as a GELU(z), and with GELU's slope for what the own block
adds taken as ½, its mean over z and -z.

    w1, v ──> Σ w1 vᵀ of each block ── scan over borders ──> GELU(c H_b) ── · w2 ──┐
    w1, w2 ─> scores of each block ── ⊙ ½ c Λ_t/Λ_s for s ≤ t ── · v ──────────────┴─> y
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.causal_hyper_mix import running
from tokmix.ops.hyper_mix import length_scale


class Border(NamedTuple):
    """The state between two tokens: the state at the last border, and what the tokens after it have added."""

    hidden: Tensor  # [B, H, k, e], at the border
    count: Tensor  # type: ignore[assignment]  # [B, H], at the border; tuple has a method of that name
    added: Tensor  # [B, H, k, e], since, faded as of now
    number: Tensor  # [B, H], since, faded as of now
    log_kept: Tensor  # [B, H], log Λ as of now


class _Blocks(NamedTuple):
    """Tokens in N blocks of C. At padding w_in is zero and λ is 1."""

    w_in: Tensor  # [B, H, N, C, k]
    w_out: Tensor  # [B, H, N, C, k]
    values: Tensor  # [B, H, N, C, e]
    log_decay: Tensor | None  # [B, H, N, C]
    here: Tensor  # [B, H, N, C], 1 = real token


class _Sums(NamedTuple):
    """For M blocks: what each adds to the state, and the state after it."""

    added: Tensor  # [B, H, M, k, e]
    number: Tensor  # [B, H, M]
    log_kept: Tensor  # [B, H, M]
    hidden: Tensor  # [B, H, M, k, e]
    count: Tensor  # type: ignore[assignment]  # [B, H, M]


def block_hyper_mix(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, power: float | None, block: int
) -> tuple[Tensor, Tensor]:
    """Whole sequences, each from column 0 on. Arguments as for the exact scan -> y [B, H, L, e], counts n_t [B, H, L]."""
    L = w_in.shape[2]
    y, counts, _ = _mix(_cut(w_in, w_out, values, log_decay, real, min(block, L)), power, None)
    return y.flatten(2, 3)[:, :, :L].to(values.dtype), counts.flatten(2)[:, :, :L]


def block_step(
    w_in: Tensor,
    w_out: Tensor,
    values: Tensor,
    log_decay: Tensor | None,
    real: Tensor | None,
    power: float | None,
    block: int,
    carry: Border,
    position: Tensor,
) -> tuple[Tensor, Tensor, Border]:
    """The next tokens of rows at any position [B], from column 0 on; and the state after them."""
    L, inside = w_in.shape[2], position % block
    lengths = torch.full_like(position, L) if real is None else real.sum(1)
    if L == 1:  # a single token: its place in a block does not matter
        y, counts, sums = _mix(_cut(w_in, w_out, values, log_decay, real, 1), power, carry)
    else:
        # Rows move to the right until their blocks begin at the same columns.
        source = torch.arange(L + block - 1, device=position.device) - inside[:, None]  # [B, W]
        real = (source >= 0) & (source < lengths[:, None])
        source = source.clamp(0, L - 1)
        log_decay = None if log_decay is None else _columns(log_decay, source)
        w_in, w_out, moved = (_columns(x, source) for x in (w_in, w_out, values))
        y, counts, sums = _mix(_cut(w_in, w_out, moved, log_decay, real, block), power, carry)
    back = inside[:, None] * (L > 1) + torch.arange(L, device=position.device)
    after = _state_behind((inside + lengths) // block, carry, sums)
    return _columns(y.flatten(2, 3), back).to(values.dtype), _columns(counts.flatten(2), back), after


def _columns(x: Tensor, index: Tensor) -> Tensor:
    """x [B, H, W, ...], index [B, K] -> [B, H, K, ...]"""
    index = index[:, None].view(len(index), 1, -1, *[1] * (x.dim() - 3))
    return x.gather(2, index.expand(-1, x.shape[1], -1, *x.shape[3:]))


def _cut(w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, C: int) -> _Blocks:
    """[B, H, L, ...] -> blocks of C, the last one padded."""
    B, H, L, _ = w_in.shape
    wide = torch.promote_types(values.dtype, torch.float32)
    if real is None:
        here = torch.ones(B, H, L, dtype=wide, device=values.device)
    else:
        w_in = torch.where(real[:, None, :, None], w_in, 0)
        log_decay = None if log_decay is None else torch.where(real[:, None], log_decay, 0)
        here = real[:, None].expand(B, H, L).to(wide)
    pad = -L % C
    w_in, w_out, values = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, C)) for x in (w_in, w_out, values.to(w_in.dtype)))
    log_decay = None if log_decay is None else F.pad(log_decay.to(wide), (0, pad)).unflatten(2, (-1, C))
    return _Blocks(w_in, w_out, values, log_decay, F.pad(here, (0, pad)).unflatten(2, (-1, C)))


def _mix(blocks: _Blocks, power: float | None, carry: Border | None) -> tuple[Tensor, Tensor, _Sums]:
    """-> y [B, H, N, C, e], counts [B, H, N, C], and the sums: of all blocks with a carry, of all but the last without one."""
    w_in, w_out, values, _, here = blocks
    fade, kept, number = _inside(blocks)
    since = fade
    if carry is not None:  # the first block continues from the carried part of it
        since = _first_plus(fade, carry.log_kept[..., None])
        number = _first_plus(number, fade[:, :, 0].exp() * carry.number[..., None])
    N, e = here.shape[2], values.shape[-1]
    sums = _sums(blocks, fade, since, number, carry, N - 1 if carry is None else N)
    hidden, count = sums.hidden, sums.count  # at the borders that are read
    if carry is not None:
        hidden = torch.cat([carry.hidden[:, :, None], hidden[:, :, :-1]], dim=2)
        count = torch.cat([carry.count[:, :, None], count[:, :, :-1]], dim=2)
    first = N - count.shape[2]
    counts = number + since.exp() * F.pad(count, (first, 0))[..., None]
    # A real token counts itself, so the clamps only matter before the first token.
    scale = length_scale(counts.clamp(min=1), e, power)
    scores = w_out @ w_in.mT
    y = ((scores * (0.5 * scale[..., None] * kept).to(scores.dtype)) @ values).to(here.dtype)
    if carry is not None:
        y = _first_plus(y, (0.5 * scale * fade.exp())[:, :, 0, :, None] * (w_out[:, :, 0] @ carry.added.to(w_out.dtype)))
    if first < N:
        at_border = length_scale(count.clamp(min=1), e, power)
        share = since[:, :, first:].exp() * scale[:, :, first:] / at_border[..., None]
        read = w_out[:, :, first:] @ F.gelu(hidden * at_border[..., None, None]).to(w_out.dtype)
        y = torch.cat([y[:, :, :first], y[:, :, first:] + share[..., None] * read], dim=2)
    return y, counts, sums


def _inside(blocks: _Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """For each block alone: log Λ_t, Λ_t/Λ_s for s ≤ t ([..., C, C], zero elsewhere), and the count of its tokens up to t."""
    log_decay, here = blocks.log_decay, blocks.here
    earlier = torch.ones(here.shape[-1], here.shape[-1], dtype=torch.bool, device=here.device).tril()
    if log_decay is None:
        return torch.zeros_like(here), earlier.to(here.dtype), here.cumsum(-1)
    fade = log_decay.cumsum(-1)
    kept = (fade[..., :, None] - fade[..., None, :]).masked_fill(~earlier, -torch.inf).exp()
    return fade, kept, (kept * here[..., None, :]).sum(-1)


def _first_plus(x: Tensor, more: Tensor) -> Tensor:
    return torch.cat([x[:, :, :1] + more[:, :, None], x[:, :, 1:]], dim=2)


def _sums(blocks: _Blocks, fade: Tensor, since: Tensor, number: Tensor, carry: Border | None, M: int) -> _Sums:
    """Sums of the first M blocks. fade, since: log Λ_t from the block's first token in this call, and from the border."""
    fade, since, number = fade[:, :, :M], since[:, :, :M, -1], number[:, :, :M, -1]
    w_in, values = blocks.w_in[:, :, :M], blocks.values[:, :, :M]
    if blocks.log_decay is not None:
        w_in = w_in * (fade[..., -1:] - fade).exp()[..., None].to(w_in.dtype)
    if M == 0:
        empty = number.new_zeros(*number.shape, w_in.shape[-1], values.shape[-1])
        return _Sums(empty, number, since, empty, number)
    added = (w_in.mT @ values).to(number.dtype)
    if carry is not None:
        added = _first_plus(added, fade[:, :, 0, -1].exp()[..., None, None] * carry.added)
    decay = None if blocks.log_decay is None else since
    hidden = running.running_sum(added.flatten(3), decay).view_as(added)
    count = running.running_sum(number[..., None], decay)[..., 0]
    if carry is not None:
        kept = since.cumsum(-1).exp()
        hidden = hidden + kept[..., None, None] * carry.hidden[:, :, None]
        count = count + kept * carry.count[..., None]
    return _Sums(added, number, since, hidden, count)


def _state_behind(full: Tensor, carry: Border, sums: _Sums) -> Border:
    """full [B]: how many blocks have ended."""
    pick = lambda x: _columns(x, full[:, None])[:, :, 0]
    at_border = (pick(torch.cat([x[:, :, None], y], dim=2)) for x, y in ((carry.hidden, sums.hidden), (carry.count, sums.count)))
    since = (pick(torch.cat([x, torch.zeros_like(x[:, :, :1])], dim=2)) for x in (sums.added, sums.number, sums.log_kept))
    return Border(*at_border, *since)


def block_flops(length: int, block: int, heads: int, e: int, k: int, decay: bool) -> int:
    """FLOPs of `block_hyper_mix`. An incomplete last block costs a whole one; a single block costs only its tokens."""
    C = min(block, length)
    N = (length + C - 1) // C
    scan = running.matmul_flops(N - 1, k * e) if decay else 0
    return heads * (N * C * 2 * C * (k + e) + (N - 1) * C * 4 * k * e + scan)
