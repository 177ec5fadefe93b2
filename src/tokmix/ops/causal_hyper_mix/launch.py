"""Launches of the causal scan; `kernels/chunked_scan.py` describes the data flow."""

from __future__ import annotations

import torch
from torch import Tensor

from tokmix.ops.causal_hyper_mix.kernels import chunked_scan as kernels
from tokmix.ops.causal_hyper_mix.kernels import chunked_scan_backward, decayed_counts
from tokmix.ops.dispatch import processors
from tokmix.ops.sizes import cdiv, next_power_of_2, within_32_bits

CHUNK = 64  # tokens between two stored states; chunks are worked on side by side
LARGEST = 128  # tokens that a program reads: those of the largest block
READ = (2048, 3)  # numbers of the state that one warp reads at a time, and stages of its loop: the fastest on an H200
# numbers of the state and warps of a program of `chunk_backward`, programs per multiprocessor, registers at most: the fastest on an H200
CHUNK_BACKWARD = (4096, 4, 3, 168)
JOIN = 256  # numbers a program of `join` follows
COUNT = 2048  # tokens a program of `counts` takes at a time


def padded(width: int) -> int:
    return max(16, next_power_of_2(width))


def last_dim_contiguous(x: Tensor) -> Tensor:
    """x [B, H, L, n] with neighbouring channels side by side in memory."""
    return x if x.stride(-1) == 1 and within_32_bits(x.stride(2), LARGEST) else x.contiguous()


def flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def strides(*tensors: Tensor) -> list[int]:
    """Strides of [B, H, L, n] tensors; the last one is 1."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def by_token(like: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, L, e] that lies in memory as [B, L, H, e], so that joining the heads moves nothing."""
    B, H, L, e = like.shape
    return torch.empty(B, L, H, e, dtype=dtype, device=like.device).transpose(1, 2)


def exact(*tensors: Tensor) -> bool:
    """Whether to compute in full float32: if no tensor has 16 bits."""
    return all(x.dtype.itemsize >= 4 for x in tensors)


class LaunchSizes:
    """Sizes that the kernels share. chunk: CHUNK by default."""

    def __init__(self, w_in: Tensor, w_out: Tensor, values: Tensor, chunk: int | None = None):
        self.B, self.H, self.L, self.k = w_in.shape
        self.e, self.chunk = values.shape[3], chunk or CHUNK
        self.chunks = cdiv(self.L, self.chunk)
        self.pieces = self.B * self.H * self.chunks
        self.kp, self.ep = padded(self.k), padded(self.e)
        self.exact = exact(w_in, w_out, values)
        self.tile = min(8192 // self.ep // (1 + self.exact), 64, self.kp)  # rows of a product
        tf32 = not self.exact or torch.get_float32_matmul_precision() != "highest"
        self.precision = "tf32" if tf32 else "tf32x3"  # the latter is as exact as float32 and takes three products
        self.device = w_in.device

    @property
    def later_chunks_warps(self) -> int:
        """Warps of a program of `later_chunks_backward`. With eight, tiles of 16 rows in tf32x3 give wrong
        gradients of the values on an H200 for heads wider than 128 (triton 3.6); four give right ones."""
        if self.exact:
            return 4 if self.tile == 16 and self.ep > 64 else 8
        return 4 if self.ep <= 64 else 8

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def states(self) -> Tensor:
        return self.empty(self.B, self.H, self.chunks, self.k, self.e)

    def join(self, given: Tensor, parts: Tensor, kept: Tensor | None, result: Tensor | None) -> None:
        size = self.k * self.e
        kernels.join[self.B * self.H, cdiv(size, JOIN)](
            given, parts, kept, result, self.chunks, size, JOIN, result is not None, num_warps=2
        )

    def written(self, w_in: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, starts: Tensor | None) -> Tensor | None:
        """Write the chunks' sums into starts -> the share of the state that each keeps, [B, H, chunks]."""
        kept = None if log_decay is None else self.empty(self.B, self.H, self.chunks)
        kernels.write[self.pieces, cdiv(self.k, self.tile)](
            w_in, values, log_decay, real, starts, kept, self.L, self.chunks, self.H, *strides(w_in, values),
            self.k, self.e, self.tile, self.ep, self.chunk, self.precision, num_warps=4,
        )  # fmt: skip
        return kept


def forward(
    w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None, scale: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y [B, H, L, e], the last state [B, H, k, e], and for the backward pass: the state before each chunk and the share
    of it that the chunk keeps; both empty for a single chunk."""
    w_in, w_out, values, hidden = last_dim_contiguous(w_in), last_dim_contiguous(w_out), last_dim_contiguous(values), hidden.contiguous()
    log_decay, real, scale = flat(log_decay), flat(real), scale.contiguous()
    plan = LaunchSizes(w_in, w_out, values)
    starts, kept, several = hidden, None, plan.chunks > 1
    if several:
        starts = plan.states()
        kept = plan.written(w_in, values, log_decay, real, starts)
        plan.join(hidden, starts, kept, None)
    y, last = by_token(values, values.dtype), torch.empty_like(hidden)
    size, stages = READ
    columns = min(plan.ep, max(4, size // plan.kp))
    loss = None if log_decay is None else torch.expm1(log_decay)
    kernels.read[(plan.pieces * cdiv(plan.e, columns),)](
        w_in, w_out, values, loss, real, scale, starts, y, last, plan.L, plan.chunks, plan.H, *strides(w_in, w_out, values, y),
        plan.k, plan.e, plan.kp, columns, CHUNK, plan.exact, stages, num_warps=max(1, plan.kp * columns // 2048),
    )  # fmt: skip
    return y, last, starts if several else plan.empty(0), plan.empty(0) if kept is None else kept


def backward(
    dy: Tensor, dlast: Tensor, w_in: Tensor, w_out: Tensor, values: Tensor, log_decay: Tensor | None, real: Tensor | None,
    scale: Tensor, hidden: Tensor, last: Tensor, starts: Tensor, kept: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of w_in, w_out, values, log_decay (empty without one), scale and hidden."""
    dy, w_in, w_out, values, dlast = (
        last_dim_contiguous(dy),
        last_dim_contiguous(w_in),
        last_dim_contiguous(w_out),
        last_dim_contiguous(values),
        dlast.contiguous(),
    )
    log_decay, real, scale = flat(log_decay), flat(real), scale.contiguous()
    plan = LaunchSizes(w_in, w_out, values)
    B, H, L, k, e = plan.B, plan.H, plan.L, plan.k, plan.e
    if plan.chunks == 1:
        starts, kept = hidden.contiguous(), plan.written(w_in, values, log_decay, real, None) if log_decay is not None else None
    elif log_decay is None:
        kept = None
    loss = None if log_decay is None else torch.expm1(log_decay)
    size, warps, per_processor, registers = CHUNK_BACKWARD
    inner = min(32, plan.ep)
    rows = max(1, min(plan.kp, size // plan.ep))
    warps = max(1, warps * rows * plan.ep // size)
    tiles = cdiv(k, rows)
    programs = min(plan.pieces * tiles, processors(w_in.device) * per_processor)
    notes = plan.empty(programs, CHUNK // chunked_scan_backward.STEPS.value, rows * plan.ep)
    dw_out, dw_part = plan.empty(B, H, L, k, dtype=w_out.dtype), plan.empty(B, H, L, k)
    dv_part, p = plan.empty(tiles, B, H, L, e, dtype=values.dtype), plan.empty(tiles, B, H, L)
    r = plan.empty(tiles, plan.pieces, CHUNK // chunked_scan_backward.STEPS.value)
    dhidden, ends = plan.empty(B, H, k, e), plan.states()
    chunked_scan_backward.chunk_backward[(programs,)](
        w_in, w_out, values, dy, loss, real, scale, starts, notes, dw_out, dw_part, dv_part, p, r, dhidden, ends,
        L, plan.chunks, H, plan.pieces, cdiv(plan.pieces * tiles, programs), *strides(w_in, w_out, values, dy),
        k, e, rows, plan.ep // inner, inner, CHUNK, plan.exact, num_warps=warps, maxnreg=registers,
    )  # fmt: skip
    plan.join(dlast, ends, kept, dhidden)
    dw_in, dvalues = plan.empty(B, H, L, k, dtype=w_in.dtype), by_token(values, values.dtype)
    dlog = plan.empty(0) if log_decay is None else plan.empty(B, H, L)
    chunked_scan_backward.later_chunks_backward[(plan.pieces,)](
        w_in, values, log_decay, real, starts, last, ends, dw_part, dv_part, p, r, dw_in, dvalues, dlog,
        L, plan.chunks, H, plan.pieces, *strides(w_in, values, dvalues),
        k, e, plan.tile, plan.ep, tiles, CHUNK, plan.precision, num_warps=plan.later_chunks_warps,
    )  # fmt: skip
    return dw_in, dw_out, dvalues, dlog, p.sum(0) / scale, dhidden


def counts(log_decay: Tensor, real: Tensor | None, first: Tensor) -> Tensor:
    B, H, L = log_decay.shape
    loss, found = torch.expm1(log_decay).contiguous(), log_decay.new_empty(B, H, L)
    size = min(COUNT, next_power_of_2(L))
    decayed_counts.counts[(B * H,)](loss, flat(real), first.contiguous(), found, L, H, size, num_warps=8)
    return found


def counts_backward(d: Tensor, log_decay: Tensor, first: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    B, H, L = log_decay.shape
    loss, dlog, dfirst = torch.expm1(log_decay).contiguous(), found.new_empty(B, H, L), found.new_empty(B, H)
    size = min(COUNT, next_power_of_2(L))
    decayed_counts.counts_backward[(B * H,)](loss, first.contiguous(), found, d.contiguous(), dlog, dfirst, L, size, num_warps=8)
    return dlog, dfirst
