"""A decaying sum over many items by products with small matrices: time linear in their number, few sequential steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 16  # items that one product takes


def running_sum(added: Tensor, log_decay: Tensor | None) -> Tensor:
    """added [..., M, f], log_decay [..., M] -> s_m = exp(log_decay_m) s_{m-1} + added_m, [..., M, f], from s = 0 on."""
    if log_decay is None:
        return added.cumsum(-2)
    M = added.shape[-2]
    if M <= GROUP:
        return _one_group(added, log_decay)
    groups = (M + GROUP - 1) // GROUP
    added = F.pad(added, (0, 0, 0, groups * GROUP - M)).unflatten(-2, (groups, GROUP))
    log_decay = F.pad(log_decay, (0, groups * GROUP - M)).unflatten(-1, (groups, GROUP))
    inside = _one_group(added, log_decay)
    ends = running_sum(inside[..., :-1, -1, :], log_decay[..., :-1, :].sum(-1))
    before = F.pad(ends, (0, 0, 1, 0))[..., None, :]  # [..., groups, 1, f]
    return (inside + log_decay.cumsum(-1).exp()[..., None] * before).flatten(-3, -2)[..., :M, :]


def _one_group(added: Tensor, log_decay: Tensor) -> Tensor:
    n = log_decay.shape[-1]
    if n == 1:
        return added
    # Sums over stretches, not differences of sums from the start: those lose digits where some decay is strong.
    later = torch.ones(n, n, dtype=torch.bool, device=added.device).tril(-1)
    stretches = torch.where(later, log_decay[..., :, None], 0).cumsum(-2)
    kept = stretches.masked_fill(later.mT, -torch.inf).exp()  # [..., n, n]
    if added.shape[-1] == 1:  # counts: autocast would round a product
        return (kept[..., None] * added[..., None, :, :]).sum(-2)
    return kept @ added


def matmul_flops(items: int, features: int) -> int:
    if items <= 1:
        return 0
    if items <= GROUP:
        return 2 * items * items * features
    groups = (items + GROUP - 1) // GROUP
    return 2 * groups * GROUP * GROUP * features + matmul_flops(groups - 1, features)
