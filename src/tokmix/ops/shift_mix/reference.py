"""Shift mixing in plain torch: a token and its partner a fixed number of places away, fused by a small function.

Channels come in H groups (heads) of e = d/H, each with its own shift. x and its partners are [B, L, H, e].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.linear import linear


def shifted(x: Tensor, distance: int) -> Tensor:
    """x [B, L, ...] moved `distance` places later (earlier if negative), filled with zeros."""
    L = x.shape[1]
    if isinstance(L, torch.SymInt):  # export with dynamic length: no branch may depend on the length
        ends = (distance, 0) if distance >= 0 else (0, -distance)
        padded = F.pad(x, (*(0, 0) * (x.dim() - 2), *ends))
        return padded.narrow(1, 0 if distance >= 0 else -distance, L)
    reach = min(abs(distance), L)
    zeros = x.new_zeros(x.shape[0], reach, *x.shape[2:])
    kept = x[:, : L - reach] if distance >= 0 else x[:, reach:]
    return torch.cat([zeros, kept] if distance >= 0 else [kept, zeros], dim=1)


def partners(x: Tensor, shifts: tuple[int, ...], sign: int = 1) -> Tensor:
    """x [B, L, H, e] -> the same with each head moved by its own shift."""
    if len(set(shifts)) == 1:
        return shifted(x, sign * shifts[0])
    return torch.stack([shifted(head, sign * shift) for head, shift in zip(x.unbind(2), shifts, strict=True)], dim=2)


def per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, L, H, i], weight [H, i, o] -> [B, L, H, o]"""
    B, L, H, _ = x.shape
    if H == 1:
        return linear(x.flatten(2), weight[0].t()).unflatten(2, (1, -1))
    return (x.flatten(0, 1).transpose(0, 1) @ weight).transpose(0, 1).unflatten(0, (B, L))


def weighted(x: Tensor, others: list[Tensor], weights: list[Tensor]) -> Tensor:
    """ab (a scalar per head, [H, 1]) and vector (one per channel, [H, e]): a ⊙ x + b ⊙ z, and c ⊙ z' both ways."""
    y = weights[0] * x
    for weight, other in zip(weights[1:], others, strict=True):
        y = y + weight * other
    return y


def matrix(x: Tensor, others: list[Tensor], weights: list[Tensor]) -> Tensor:
    """A x + B z: a dilated convolution of kernel 2 (3 both ways). weights [H, e, e] each."""
    return per_head(torch.cat([x, *others], dim=-1), torch.cat(weights, dim=1))


def gated(x: Tensor, others: list[Tensor], weight: Tensor, bias: Tensor, both: bool) -> Tensor:
    """g ⊙ x + (1 - g) ⊙ z with g = sigmoid(W x + c), or of W [x; z] where both. Both ways, z is the mean of the two."""
    gate = torch.sigmoid(per_head(torch.cat([x, *others], dim=-1) if both else x, weight) + bias)
    other = others[0] if len(others) == 1 else (others[0] + others[1]) / 2
    return other + gate * (x - other)


def fused(x: Tensor, others: list[Tensor], inner: Tensor, outer: Tensor) -> Tensor:
    """V GELU(U [x; z]). inner [H, 2e, h], outer [H, h, e]."""
    return per_head(F.gelu(per_head(torch.cat([x, *others], dim=-1), inner)), outer)


def fused_rows(x: Tensor, shifts: tuple[int, ...], both_ways: bool, inner: Tensor, outer: Tensor) -> Tensor:
    """`fused` of whole rows x [B, L, H, e]. Products come before shifts, because a CPU then moves rows of h and not of 3e."""
    e = x.shape[-1]
    hidden = per_head(x, inner[:, :e]) + partners(per_head(x, inner[:, e : 2 * e]), shifts)
    if both_ways:
        hidden = hidden + partners(per_head(x, inner[:, 2 * e :]), shifts, -1)
    return per_head(F.gelu(hidden), outer)


def step_partners(x: Tensor, ring: Tensor, position: Tensor, counts: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Decoding, one head: x [B, L, e], ring [B, shift, e] with the token at position p in slot p mod shift (zero
    before the start), counts [B] new tokens a row -> (the partners of x, the new ring)."""
    B, L, e = x.shape
    both = torch.cat([ring, x], dim=1)
    steps = torch.arange(L, device=x.device)
    # The partner of new token i is in x if i >= shift, else in the ring at position + i - shift.
    source = torch.where(steps >= shift, steps, (position[:, None] + steps) % shift)
    last = (position + counts)[:, None] - 1
    slots = torch.arange(shift, device=x.device)
    newest = last - (last - slots) % shift  # the newest position that falls into each slot
    kept = torch.where(newest >= position[:, None], newest - position[:, None] + shift, slots)
    pick = lambda index: both.gather(1, index[..., None].expand(B, -1, e))
    return pick(source), pick(kept)


def exchange_(x: Tensor, ring: Tensor, position: Tensor, new: Tensor | None, advance: bool) -> Tensor:
    """Decoding in place, one head and one token a row: x [B, 1, e] replaces its partner in ring [B, shift, e]; the partner
    is returned, [B, 1, e]. new [B]: which rows have a token; advance: their position increases by one."""
    rows = torch.arange(x.shape[0], device=x.device)
    slots = position % ring.shape[1]
    other = ring[rows, slots]
    given = x[:, 0].to(ring.dtype)
    ring[rows, slots] = given if new is None else torch.where(new[:, None], given, other)
    if advance:
        position += 1 if new is None else new
    return other[:, None]
