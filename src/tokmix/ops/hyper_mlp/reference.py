"""HyperMLP and HyperGLU in plain torch (Lu & Yang 2026): scores mixed over lags before and after the activation.

z    [B, Hq, L, N]   scores q_t · k_j
R(z) = z (1 + p) + ((z A) ⊙ s) B      along the sequence, by lag t - j (or by position j without lag layout)
a    = ReLU(R1(z) / ‖R1(z)‖)          HyperGLU: times softplus of a second set of scores
w    = R2(a),  o_t = Σ_j w_tj v_j
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.recompute import recomputed

CHUNK = 512  # queries of a piece of a long sequence


class Bank(NamedTuple):
    """A sequence mixer R for each head: identity plus a diagonal plus rank r, controlled by the token."""

    down: Tensor  # A [H, max_len, r]
    up: Tensor  # B [H, r, max_len]
    diagonal: Tensor  # p [H, max_len]
    control: Tensor  # s [B, H, L, r], between 0 and 1


def relu_of_normalised(scores: Tensor) -> Tensor:
    """ReLU(z / ‖z‖₂) over the last dimension, zero where all of z is. The norm is taken in float32 at least."""
    wide = scores.float() if scores.dtype.itemsize < 4 else scores
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).clamp(min=1e-12)
    return (F.relu(wide) / norm).to(scores.dtype)


def by_lag(scores: Tensor, query_at: Tensor, lags: int) -> Tensor:
    """scores [B, H, L, N] by key position -> [B, H, L, lags] by lag, newest first; zero where a lag does not exist.
    The same call turns lags back into positions. query_at [1 or B, L]."""
    source = query_at[:, None, :, None] - torch.arange(lags, device=scores.device)  # [B, 1, L, lags]
    inside = (source >= 0) & (source < scores.shape[-1])
    index = source.clamp(0, scores.shape[-1] - 1).expand(*scores.shape[:-1], lags)
    return torch.where(inside, scores.gather(-1, index), 0)


def _mixed(scores: Tensor, bank: Bank | None) -> Tensor:
    """R(z) for z [B, H, L, lags]."""
    if bank is None:
        return scores
    lags = scores.shape[-1]  # narrow, not a slice: in an export with dynamic length, torch then knows that nothing is cut off
    low = (scores @ bank.down.narrow(1, 0, lags)) * bank.control
    return scores * (1 + bank.diagonal[:, None].narrow(2, 0, lags)) + low @ bank.up.narrow(2, 0, lags)


def hyper_mlp(
    q: Tensor, k: Tensor, v: Tensor, query_at: Tensor | None, first: Bank | None, second: Bank | None, lag: bool, limit: int
) -> Tensor:
    """q [B, Hq, L, e], k [B, Hq, N, e], v [B, H, N, f] -> [B, H, L, f]; keys stand at positions 0, 1, ..., queries at
    query_at [1 or B, L], or with them where that is None. Hq = 2 H means HyperGLU: gate heads first, then scale heads.
    limit: the banks' max_len."""
    if query_at is not None:
        return _rows(q, k, v, query_at, first, second, lag, limit)
    L, at = q.shape[2], torch.arange(q.shape[2], device=q.device)[None]
    if torch.compiler.is_compiling() or L <= 2 * CHUNK:
        return _rows(q, k, v, at, first, second, lag, limit)
    pieces = []
    for begin in range(0, L, CHUNK):  # a piece of queries needs no later keys: half of the work, and less memory
        end = min(begin + CHUNK, L)
        banks = [None if x is None else x._replace(control=x.control[:, :, begin:end]) for x in (first, second)]
        given = (q[:, :, begin:end], k[:, :, :end], v[:, :, :end], at[:, begin:end], *banks, lag, limit)
        # Scores are recomputed for the gradient, so only those of one piece exist at a time.
        pieces.append(recomputed(_rows, *given))
    return torch.cat(pieces, dim=2)


def _rows(q: Tensor, k: Tensor, v: Tensor, query_at: Tensor, first: Bank | None, second: Bank | None, lag: bool, limit: int) -> Tensor:
    heads, keys, dtype = v.shape[1], k.shape[2], v.dtype
    if dtype.itemsize < 4:  # the norm divides by small numbers: rounded scores would turn the sign of the active set
        q, k, first, second = q.float(), k.float(), _widened(first), _widened(second)
    scores = q @ k.transpose(-1, -2)  # [B, Hq, L, N]
    N = keys if isinstance(keys, torch.SymInt) else min(keys, limit)  # an export with dynamic length: at most as many as the banks have
    there = torch.arange(N, device=q.device) <= query_at[:, None, :, None]  # lags, or positions, that exist
    laid_out = by_lag(scores, query_at, N) if lag else scores.narrow(3, 0, N)
    # The mixer writes into lags beyond the start, which do not exist: hence the mask after it, not only before.
    mixed = torch.where(there, _mixed(torch.where(there, laid_out, 0), first), 0)
    active = relu_of_normalised(mixed[:, :heads])
    if q.shape[1] == 2 * heads:
        active = active * F.softplus(mixed[:, heads:])
    weights = torch.where(there, _mixed(active, second), 0)
    if lag:
        weights = by_lag(weights, query_at, N)
    return weights.to(dtype) @ v.narrow(2, 0, N)


def _widened(bank: Bank | None) -> Bank | None:
    return None if bank is None else Bank(*(part.float() for part in bank))


def matmul_flops(queries: int, keys: int, score_heads: int, heads: int, e: int, f: int, first: int, second: int) -> int:
    """first, second: ranks of the two banks, 0 if there is none."""
    pairs = 2 * queries * keys
    return pairs * (score_heads * (e + 2 * first) + heads * (f + 2 * second))
