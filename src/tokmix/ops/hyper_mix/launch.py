"""HyperMixing with heads, put together: kernels over the tokens and, between them, small products in torch.

Per-sequence matrices lie as [H, rows, S, e], so that a product with a head's weights is one batched matrix product
over all sequences; a bias is the last row of its matrix, so that it costs nothing of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from tokmix.ops import flops  # noqa: F401  (triton is loaded now, so counters may be told)
from tokmix.ops.dispatch import INTERPRETED, processors
from tokmix.ops.hyper_mix import norm_triton
from tokmix.ops.hyper_mix import triton as kernels

LONGEST = 4096  # rows of a piece: keeps offsets inside of one in 32 bits
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Rows, warps, stages of a program, for heads of up to 64 and above: for the former the fastest on an H200. Eight warps
# with two stages gave wrong states for heads of 128 there (triton 3.6), so one stage it is.
STATE = ((64, 4, 3), (64, 8, 1))
OUTPUT = ((64, 4, 3), (64, 8, 1))
OUTPUT_BACKWARD = ((64, 4, 1), (64, 8, 1))
STATE_BACKWARD = ((64, 4, 1), (64, 8, 1))
# Programs a multiprocessor should get: backwards, as many as it can hold at a time.
FORWARD_SLOTS, BACKWARD_SLOTS = (8, 4), (2, 1)


class Nets(NamedTuple):
    """The weights of one hypernetwork: [H, e, e], [H, e], [H, e, k], [H, k]."""

    inner: Tensor
    inner_bias: Tensor | None
    outer: Tensor
    outer_bias: Tensor | None


def piece_rows(T: int, programs: int, slots: int) -> int:
    """Rows of a piece, so that pieces of that many sequences and heads keep all slots busy to the end. Every piece
    costs a matrix of sums, so more of them have to be worth it."""
    best, size = 0.0, min(LONGEST, 64 * triton.cdiv(T, 64))
    for n in range(triton.cdiv(T, LONGEST), max(16, 2 * triton.cdiv(slots, programs)) + 1):
        rows = 64 * triton.cdiv(T, 64 * n)
        rounds = triton.cdiv(programs * triton.cdiv(T, rows), slots)
        busy = T * programs / (rounds * slots * rows)
        if busy > best + 0.05:
            best, size = busy, rows
    return size


class Plan:
    """How x [B, T, D] is cut into pieces, and what every kernel is told about it."""

    def __init__(self, x: Tensor, heads: int, biased: bool, table: Tensor | None, first: Tensor | None, size: int, slots: tuple[int, int]):
        B, T, D = x.shape
        self.heads, self.e, self.T, self.total = heads, D // heads, T, B * T
        self.big = self.e > 64
        self.rows = self.e + biased  # of a per-sequence matrix
        self.table, self.first = table, first
        if table is None:
            self.size = piece_rows(T, B * heads, processors(x.device) * slots[self.big])
            self.per_sequence, self.sequences = triton.cdiv(T, self.size), B
            self.pieces = B * self.per_sequence
        else:
            assert first is not None and size <= LONGEST
            self.size, self.per_sequence = size, 1
            self.sequences, self.pieces = first.shape[0] - 1, table.shape[0]
        self.device, self.dtype = x.device, x.dtype

    def shape(self, tile: int) -> tuple[object, ...]:
        """The constants that kernels end with."""
        tf32 = torch.get_float32_matmul_precision() != "highest"
        padded = max(16, triton.next_power_of_2(self.e))
        return self.e, self.rows, padded, tile, KINDS[self.dtype], INTERPRETED, "tf32" if tf32 else "ieee"

    def parts(self, rows: int) -> Tensor:
        """Room for one matrix a piece and head."""
        return torch.empty(self.pieces, self.heads, rows, self.e, dtype=torch.float32, device=self.device)

    def added(self, parts: Tensor) -> Tensor:
        """The pieces' matrices added up for each sequence: [H, rows, S, e]."""
        out = torch.empty(self.heads, self.rows, self.sequences, self.e, dtype=self.dtype, device=self.device)
        grid = (self.sequences, self.heads, triton.cdiv(self.rows * self.e, 1024))
        kernels.add_pieces[grid](parts, self.first, out, self.per_sequence, self.heads, self.sequences, self.e, self.rows, 1024)
        return out


def lined(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def with_bias(net: Nets, dtype: torch.dtype) -> Tensor:
    """[V; c], [H, e (+ 1), k]"""
    joined = net.outer if net.outer_bias is None else torch.cat([net.outer, net.outer_bias[:, None]], dim=1)
    return joined.to(dtype)


def scaled(x: Tensor, scale: Tensor | None, e: int) -> None:
    """x [H, rows, S * e] times a number for each sequence, [S] or [1], in place."""
    if scale is not None:
        x.unflatten(2, (-1, e)).mul_(scale[:, None].to(x.dtype))


def forward(
    x: Tensor, values: Tensor | None, net_in: Nets, net_out: Nets, scale: Tensor | None, readout: Tensor | None,
    gain: Tensor | None, bias: Tensor | None, eps: float, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x, values [B, T, D] -> y, and for the backward pass: states, hidden, [Q; r], and where there is a norm its input
    and the means and 1 / deviations of its rows."""
    T = x.shape[1]
    x, values = lined(x), None if values is None else lined(values)
    heads = net_in.inner.shape[0]
    assert (net_in.outer_bias is None) == (net_out.outer_bias is None)
    plan = Plan(x, heads, net_in.outer_bias is not None, table, first, size, FORWARD_SLOTS)
    parts = plan.parts(plan.rows)
    tile, warps, stages = STATE[plan.big]
    v = x if values is None else values
    kernels.state[plan.pieces, heads](
        x, values, net_in.inner, net_in.inner_bias, table, parts, T, plan.size, plan.per_sequence,
        x.stride(0), x.stride(1), v.stride(0), v.stride(1), *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    states = plan.added(parts)  # [H, rows, S, e]
    outer_in = with_bias(net_in, x.dtype)
    outer_out = outer_in if net_out is net_in else with_bias(net_out, x.dtype)
    hidden = torch.bmm(outer_in.mT, states.flatten(2))  # [H, k, S * e]
    scaled(hidden, scale, plan.e)
    read = torch.bmm(outer_out, F.gelu(hidden))  # [Q; r], [H, rows, S * e]
    scaled(read, readout, plan.e)
    z = (torch.empty if full else torch.zeros)(x.shape, dtype=x.dtype, device=x.device)
    # With a norm, the rows that hold a token are told by a 1 in what becomes their 1 / deviation.
    rstd = (torch.empty if full else torch.zeros)(plan.total if gain is not None else 0, dtype=torch.float32, device=x.device)
    tile, warps, stages = OUTPUT[plan.big]
    kernels.output[plan.pieces, heads](
        x, net_out.inner, net_out.inner_bias, read, table, z, None if full or gain is None else rstd,
        T, plan.size, plan.per_sequence, plan.sequences, x.stride(0), x.stride(1),
        heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if gain is None or bias is None:
        return z, states, hidden, read, x.new_empty(0), torch.empty_like(rstd), rstd
    y, mean = norm_triton.forward(z, gain, bias, eps, rstd, not full)
    return y, states, hidden, read, z, mean, rstd


def backward(
    dy: Tensor, saved: Sequence[Tensor], x: Tensor, values: Tensor | None, net_in: Nets, net_out: Nets,
    scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, table: Tensor | None, first: Tensor | None, size: int, full: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """saved: what `forward` gave beside y. Returns the gradients of x, values, [U; b] of both nets [2, H, e + 1, e], [V; c]
    of each [H, rows, k], and the norm's [2, D]."""
    T, D = x.shape[1:]
    states, hidden, read, z, mean, rstd = saved
    x, dy, values = lined(x), lined(dy), None if values is None else lined(values)
    heads = net_in.inner.shape[0]
    plan = Plan(x, heads, net_in.outer_bias is not None, table, first, size, BACKWARD_SLOTS)
    e = plan.e
    make = torch.empty if full else torch.zeros
    cut = (T, plan.size, plan.per_sequence, plan.sequences, x.stride(0), x.stride(1))
    if gain is not None:
        dz, norm = norm_triton.backward(dy, z, gain, mean, rstd)
        dx = dz  # overwritten piece by piece: nobody else reads it
    else:
        dz, norm = dy, torch.empty(0, D, dtype=torch.float32, device=x.device)
        dx = make(x.shape, dtype=x.dtype, device=x.device)
    dq, du = plan.parts(plan.rows), torch.empty(2, plan.pieces, heads, e + 1, e, dtype=torch.float32, device=x.device)
    tile, warps, stages = OUTPUT_BACKWARD[plan.big]
    kernels.output_backward[plan.pieces, heads](
        x, dz, net_out.inner, net_out.inner_bias, read, table, dq, du[1],
        *cut, dz.stride(0), dz.stride(1), dx, heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    dread = plan.added(dq).flatten(2)  # [H, rows, S * e]
    scaled(dread, readout, e)
    active = F.gelu(hidden)
    dv2 = torch.bmm(dread, active.mT)
    outer_in = with_bias(net_in, x.dtype)
    outer_out = outer_in if net_out is net_in else with_bias(net_out, x.dtype)
    dhidden = torch.ops.aten.gelu_backward(torch.bmm(outer_out.mT, dread), hidden)
    scaled(dhidden, scale, e)
    dv1 = torch.bmm(states.flatten(2), dhidden.mT)
    dstates = torch.bmm(outer_in, dhidden)
    dvalues = None if values is None else make(x.shape, dtype=x.dtype, device=x.device)
    v = x if values is None else values
    tile, warps, stages = STATE_BACKWARD[plan.big]
    kernels.state_backward[plan.pieces, heads](
        x, values, net_in.inner, net_in.inner_bias, dstates, table, dx, dvalues, du[0],
        *cut, v.stride(0), v.stride(1), heads, *plan.shape(tile), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dx, x.new_empty(0) if dvalues is None else dvalues, du.sum(1), dv1, dv2, norm
