"""HyperMixing with heads, put together: kernels over the tokens and, between them, one over the sequences.

Per-sequence matrices lie as [H, rows, S, e], so that a product over all sequences is one batched matrix product; a bias
is the last row of its matrix, so that it costs nothing of its own.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from tokmix.ops import flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.dispatch import processors
from tokmix.ops.hyper_mix.kernels import hidden_state, layer_norm
from tokmix.ops.hyper_mix.kernels import reassociated as kernels
from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.sizes import cdiv, next_power_of_2, within_32_bits

LONGEST = 4096  # rows of a piece: keeps offsets inside of one in 32 bits
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Rows, warps, stages of a program, for heads of up to 64 and above: for the former the fastest on an H200. Eight warps
# with two stages gave wrong states for heads of 128 there (triton 3.6), so one stage it is.
STATE = ((64, 4, 3), (64, 8, 1))
OUTPUT = ((64, 4, 3), (64, 8, 1))
OUTPUT_BACKWARD = ((64, 4, 1), (64, 8, 1))
STATE_BACKWARD = ((64, 4, 1), (64, 8, 1))
# Pieces and numbers of a program of their sums, for sequences of few pieces and, in the mean, of so many.
ADD_FEW, ADD_MANY, MANY = (1, 1024), (2, 128), 8
# Programs per multiprocessor; in the backward pass as many as it can hold at once.
FORWARD_SLOTS, BACKWARD_SLOTS = (8, 4), (2, 1)


class Nets(NamedTuple):
    """The weights of one hypernetwork: [H, e, e], [H, e], [H, e, k], [H, k]."""

    inner: Tensor
    inner_bias: Tensor | None
    outer: Tensor
    outer_bias: Tensor | None


@functools.cache
def piece_rows(T: int, programs: int, slots: int) -> int:
    """Rows of a piece, so that pieces of that many sequences and heads keep all slots busy to the end. Every piece
    costs a matrix of sums, so more of them have to be worth it."""
    best, size = 0.0, min(LONGEST, 64 * cdiv(T, 64))
    for n in range(cdiv(T, LONGEST), max(16, 2 * cdiv(slots, programs)) + 1):
        rows = 64 * cdiv(T, 64 * n)
        rounds = cdiv(programs * cdiv(T, rows), slots)
        busy = T * programs / (rounds * slots * rows)
        if busy > best + 0.05:
            best, size = busy, rows
    return size


class LaunchSizes:
    """How x [B, T, D] is cut into pieces, as arguments of every kernel."""

    def __init__(self, x: Tensor, heads: int, biased: bool, table: Tensor | None, first: Tensor | None, size: int, slots: tuple[int, int]):
        B, T, D = x.shape
        self.heads, self.e, self.T, self.total = heads, D // heads, T, B * T
        self.big = self.e > 64
        self.rows = self.e + biased  # of a per-sequence matrix
        self.table, self.first = table, first
        if table is None:
            self.size = piece_rows(T, B * heads, processors(x.device) * slots[self.big])
            self.per_sequence, self.sequences = cdiv(T, self.size), B
            self.pieces = B * self.per_sequence
        else:
            assert first is not None and size <= LONGEST
            self.size, self.per_sequence = size, 1
            self.sequences, self.pieces = first.shape[0] - 1, table.shape[0]
        self.device, self.dtype = x.device, x.dtype

    def shape(self, tile: int) -> tuple[object, ...]:
        """The constants at the end of a kernel's arguments."""
        tf32 = torch.get_float32_matmul_precision() != "highest"
        padded = max(16, next_power_of_2(self.e))
        return self.e, self.rows, padded, tile, KINDS[self.dtype], "tf32" if tf32 else "ieee"

    def parts(self, rows: int) -> Tensor:
        """An empty tensor with one matrix per piece and head."""
        return torch.empty(self.pieces, self.heads, rows, self.e, dtype=torch.float32, device=self.device)

    def matrices(self, dtype: torch.dtype | None = None) -> Tensor:
        """An empty tensor with one matrix per sequence and head: [H, rows, S, e]."""
        return torch.empty(self.heads, self.rows, self.sequences, self.e, dtype=dtype or self.dtype, device=self.device)

    def sum_pieces(self, parts: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The pieces' matrices added up for each sequence: [H, rows, S, e]."""
        out = self.matrices(dtype)
        at_once, block = ADD_FEW if self.pieces < MANY * self.sequences else ADD_MANY
        grid = (self.sequences, self.heads, cdiv(self.rows * self.e, block))
        kernels.add_pieces[grid](parts, self.first, out, self.per_sequence, self.heads, self.sequences, self.e, self.rows, at_once, block)
        return out


def last_dim_contiguous(x: Tensor) -> Tensor:
    """x [B, T, D] with neighbouring channels side by side in memory."""
    return x if x.stride(-1) == 1 and within_32_bits(x.stride(1), LONGEST) else x.contiguous()


def middle(net_in: Nets, net_out: Nets, plan: LaunchSizes, scale: Tensor | None, readout: Tensor | None) -> tuple[object, ...]:
    """The constants at the end of the arguments of the kernels between the passes."""
    k = net_in.outer.shape[2]
    one = lambda factors: factors is None or factors.shape[0] == 1
    e, rows, padded, _, *how = plan.shape(0)
    return plan.sequences, one(scale), one(readout), k, min(64, max(16, next_power_of_2(k))), e, rows, padded, *how


def _float(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.float().contiguous()


def nets(
    u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None, v2: Tensor | None, c2: Tensor | None
) -> tuple[Nets, Nets]:
    """Both nets with contiguous tensors; the first one twice if there is no second."""
    first = Nets(u1.contiguous(), _contiguous(b1), v1.contiguous(), _contiguous(c1))
    if u2 is None or v2 is None:
        return first, first
    return first, Nets(u2.contiguous(), _contiguous(b2), v2.contiguous(), _contiguous(c2))


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def partial_sums(
    x: Tensor, values: Tensor | None, net: Nets, table: Tensor | None, first: Tensor | None, size: int
) -> tuple[Tensor, LaunchSizes]:
    """[Hᵀ v; 1ᵀ v] of each piece, with H = GELU(x U + b) and v = values, or x; `sum_pieces` adds them up."""
    heads = net.inner.shape[0]
    plan = LaunchSizes(x, heads, net.outer_bias is not None, table, first, size, FORWARD_SLOTS)
    parts = plan.parts(plan.rows)
    tile, warps, stages = STATE[plan.big]
    v = x if values is None else values
    kernels.state[plan.pieces, heads](
        x, values, net.inner, net.inner_bias, table, parts, x.shape[1], plan.size, plan.per_sequence,
        x.stride(0), x.stride(1), v.stride(0), v.stride(1), *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return parts, plan


def forward(
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x, values [B, T, D] -> y, and for the backward pass: states, [Q; r], and where there is a norm its input and the
    means and 1 / deviations of its rows."""
    x, values = last_dim_contiguous(x), None if values is None else last_dim_contiguous(values)
    net_in, net_out = nets(u1, b1, v1, c1, u2, b2, v2, c2)
    scale, readout = _float(scale), _float(readout)
    heads = net_in.inner.shape[0]
    assert (net_in.outer_bias is None) == (net_out.outer_bias is None)
    sums, plan = partial_sums(x, values, net_in, table, first, size)
    states = plan.sum_pieces(sums, torch.float32)
    read = plan.matrices()
    hidden_state.middle_forward[plan.sequences, heads](
        states, net_in.outer, net_in.outer_bias, net_out.outer, net_out.outer_bias, scale, readout, read,
        *middle(net_in, net_out, plan, scale, readout), num_warps=4 if plan.e <= 64 else 8, num_stages=1,
    )  # fmt: skip
    z = (torch.empty if full else torch.zeros)(x.shape, dtype=x.dtype, device=x.device)
    # With a norm, rows that hold a token are marked by a 1 in the tensor of 1 / deviation.
    rstd = (torch.empty if full else torch.zeros)(plan.total if gain is not None else 0, dtype=torch.float32, device=x.device)
    tile, warps, stages = OUTPUT[plan.big]
    kernels.output[plan.pieces, heads](
        x, net_out.inner, net_out.inner_bias, read, table, z, None if full or gain is None else rstd,
        x.shape[1], plan.size, plan.per_sequence, plan.sequences, x.stride(0), x.stride(1),
        heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if gain is None or bias is None:
        return z, states, read, x.new_empty(0), torch.empty_like(rstd), rstd
    y, mean = layer_norm.forward(z, gain, bias, eps, rstd, not full)
    return y, states, read, z, mean, rstd


def backward(
    dy: Tensor, states: Tensor, read: Tensor, z: Tensor, mean: Tensor, rstd: Tensor,
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """states to rstd: the results of `forward` after y. Returns the gradients of x, values, [U; b] of the n nets [n, H, e + 1, e], [V; c]
    as the first and as the second [H, rows, k], and the norm's [2, D].

    Two nets: a pass back through the output, one back through the states. One net for both: a light pass for the sums that
    the states' gradient needs, then one pass for all the rest, with eight products a token instead of ten."""
    net_in, net_out = nets(u1, b1, v1, c1, u2, b2, v2, c2)
    tied, heads = net_out is net_in, net_in.inner.shape[0]
    x, dy, values = last_dim_contiguous(x), last_dim_contiguous(dy), None if values is None else last_dim_contiguous(values)
    scale, readout = _float(scale), _float(readout)
    plan = LaunchSizes(x, heads, net_in.outer_bias is not None, table, first, size, BACKWARD_SLOTS)
    make = lambda: (torch.empty if full else torch.zeros)(x.shape, dtype=x.dtype, device=x.device)
    if gain is not None:
        dz, norm = layer_norm.backward(dy, z, gain, mean, rstd)
        dx = dz  # overwritten piece by piece; nothing else reads it
    else:
        dz, norm, dx = dy, torch.empty(0, x.shape[2], dtype=torch.float32, device=x.device), make()
    dvalues, v = (None, x) if values is None else (make(), values)
    du = torch.empty(1 if tied else 2, plan.pieces, heads, plan.e + 1, plan.e, dtype=torch.float32, device=x.device)
    cut = (x.shape[1], plan.size, plan.per_sequence, plan.sequences, x.stride(0), x.stride(1))
    if tied:
        sums, own = partial_sums(x, dz, net_out, table, first, size)
        dread = own.sum_pieces(sums, x.dtype)
    else:
        parts = plan.parts(plan.rows)
        tile, warps, stages = OUTPUT_BACKWARD[plan.big]
        kernels.output_backward[plan.pieces, heads](
            x, dz, net_out.inner, net_out.inner_bias, read, table, parts, du[1],
            *cut, dz.stride(0), dz.stride(1), dx, heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
        )  # fmt: skip
        dread = plan.sum_pieces(parts)
    dstates = plan.matrices()
    dhidden, active = (x.new_empty(heads, net_in.outer.shape[2], plan.sequences * plan.e) for _ in range(2))
    hidden_state.middle_backward[plan.sequences, heads](
        dread, states, net_in.outer, net_in.outer_bias, net_out.outer, net_out.outer_bias, scale, readout, dstates, dhidden, active,
        *middle(net_in, net_out, plan, scale, readout), num_warps=4 if plan.e <= 64 else 8, num_stages=1,
    )  # fmt: skip
    dv1, dv2 = torch.bmm(states.to(x.dtype).flatten(2), dhidden.mT), torch.bmm(dread.flatten(2), active.mT)
    tile, warps, stages = STATE_BACKWARD[plan.big]
    if tied:
        kernels.tied_backward[plan.pieces, heads](
            x, values, dz, net_in.inner, net_in.inner_bias, read, dstates, table, dx, dvalues, du,
            *cut, v.stride(0), v.stride(1), dz.stride(0), dz.stride(1), heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
        )  # fmt: skip
    else:
        kernels.state_backward[plan.pieces, heads](
            x, values, net_in.inner, net_in.inner_bias, dstates, table, dx, dvalues, du[0],
            *cut, v.stride(0), v.stride(1), heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return dx, x.new_empty(0) if dvalues is None else dvalues, sum_partials(du), dv1, dv2, norm
