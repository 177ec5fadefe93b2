"""Short sequences on a CPU: a few at a time, so that their hidden states stay in the cache and are not kept for gradients.

A hidden state [d', d] is far larger than a short sequence [L, d]. Writing and reading all of a batch's states, four times in training,
takes longer than the products that compute them. Recomputing them in the backward pass costs one more product of L tokens and no memory.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.ops.fast_call import Context, unwatched

LONGEST = 64  # above this length, recomputing a state costs more than reading it
WORTH = 2**25  # bytes of all hidden states; a smaller total stays in the caches anyway
CACHE = 2**21  # bytes of hidden states at a time, for each thread


def pays(w_in: Tensor, values: Tensor) -> bool:
    """w_in [S, H, M, k], values [S, H, M, e]"""
    fits = w_in.device.type == "cpu" and w_in.shape[2] <= LONGEST and len(w_in) * _bytes(w_in, values) >= WORTH
    return fits and not torch.is_autocast_enabled("cpu") and unwatched((w_in, values))


def _bytes(w_in: Tensor, values: Tensor) -> int:
    """Bytes of one sequence's hidden state."""
    return w_in.shape[1] * w_in.shape[3] * values.shape[3] * values.element_size()


def mix(w_in: Tensor, w_out: Tensor, values: Tensor, scale: Tensor | None) -> Tensor:
    """The reference's contract."""
    at_once = max(1, CACHE * torch.get_num_threads() // _bytes(w_in, values))
    # The state is linear in the values, so scaling the values scales the state.
    values = values if scale is None else values * scale.to(values.dtype)
    y: Tensor = _Mix.apply(w_in, w_out, values, at_once)  # type: ignore[no-untyped-call]
    return y


class _Kept(Context, Protocol):
    at_once: int


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Kept, w_in: Tensor, w_out: Tensor, values: Tensor, at_once: int) -> Tensor:
        ctx.save_for_backward(w_in, w_out, values)
        ctx.at_once = at_once
        parts = zip(w_in.split(at_once), w_out.split(at_once), values.split(at_once), strict=True)
        return torch.cat([out @ F.gelu(into.mT @ v) for into, out, v in parts])

    @staticmethod
    def backward(ctx: _Kept, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        given = (*ctx.saved_tensors, dy)
        parts = zip(*(one.split(ctx.at_once) for one in given), strict=True)
        d_in, d_out, d_values = zip(*(_pull(*part) for part in parts), strict=True)
        return torch.cat(d_in), torch.cat(d_out), torch.cat(d_values), None


def _pull(w_in: Tensor, w_out: Tensor, values: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of w_in, w_out and values from dy; they can be differentiated again."""
    hidden = w_in.mT @ values
    d_hidden = torch.ops.aten.gelu_backward(w_out.mT @ dy, hidden)
    return values @ d_hidden.mT, dy @ F.gelu(hidden).mT, w_in @ d_hidden
