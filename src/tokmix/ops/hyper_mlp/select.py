"""HyperMLP: kernels if device, dtype and shape allow, else the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.dispatch import KERNEL_DTYPES, autocast_dtype, use_triton
from tokmix.ops.hyper_mlp import op, reference
from tokmix.ops.hyper_mlp.reference import Bank
from tokmix.ops.sizes import DEEPEST

WIDEST = (128, 64)  # e and r that programs can hold on chip
WIDEST_FLOAT32 = (64, 32)  # above this, Triton takes minutes to compile the float32 products


def hyper_mlp(
    q: Tensor, k: Tensor, v: Tensor, query_at: Tensor | None, first: Bank | None, second: Bank | None, lag: bool, limit: int
) -> Tensor:
    """Arguments and result as of the reference. The kernels take whole sequences: query_at None."""
    dtype = autocast_dtype(v) or v.dtype
    if not use_triton(v, dtype, query_at is None and _fits(q, k, v, first, second, limit, dtype)):
        return reference.hyper_mlp(q, k, v, query_at, first, second, lag, limit)
    banks = [part for bank in (first, second) for part in _cut(bank, v.shape[2])]
    given = (q.to(dtype), k.to(dtype), v.to(dtype), *banks)
    return op.forward.entry(*given)(*given, lag)[0]


def _fits(q: Tensor, k: Tensor, v: Tensor, first: Bank | None, second: Bank | None, limit: int, dtype: torch.dtype) -> bool:
    banks = [bank for bank in (first, second) if bank is not None]
    known = all(x.dtype in KERNEL_DTYPES for x in (q, k, v, *(part for bank in banks for part in bank)))
    e, r = WIDEST_FLOAT32 if dtype == torch.float32 else WIDEST
    narrow = q.shape[3] <= e and all(bank.down.shape[2] <= r for bank in banks)
    indexed = max(x.stride(2) for x in (q, k, v)) * v.shape[2] < 2**31  # offsets inside of a sequence
    indexed = indexed and q.shape[0] * q.shape[1] <= DEEPEST  # sequences and heads are one axis of a grid
    return known and narrow and indexed and v.numel() > 0 and q.numel() > 0 and k.shape[2] == q.shape[2] <= limit


def _cut(bank: Bank | None, T: int) -> tuple[Tensor | None, ...]:
    """A bank's parts, cut to as many lags as there are tokens."""
    if bank is None:
        return (None, None, None, None)
    return bank.down[:, :T], bank.up[:, :, :T], bank.diagonal[:, :T], bank.control
