"""HyperMixing with one head, or few wide ones, put together: large products by cuBLAS, all else by `kernels/wide_heads.py`.

With H_i = GELU(x U_i + b_i), per-sequence matrices transposed, so that each is one plain product over all sequences:

    p = x [U_1 | U_2]   h = GELU(p + b)   Mᵀ = vᵀ h_1   Sᵀ = Mᵀ V_1 + m c_1ᵀ   G = GELU(scale S)   Qᵀ = Gᵀ V_2ᵀ   z = h_2 Q + r
    tokens  [H, B * T, (2) i]            [H, B * e, i]    [H, B * e, k]                            [H, B * e, i]

p and h are kept for the backward pass, because recomputing them costs a product. The textbook's [T, k] matrices never exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokmix.ops import flops  # noqa: F401  (registers the FLOP formulas, which imports triton)
from tokmix.ops.dispatch import processors
from tokmix.ops.hyper_mix.kernels import wide_heads as kernels
from tokmix.ops.hyper_mix.launch import KINDS, Nets, nets
from tokmix.ops.hyper_mix.reassociated import loses_digits
from tokmix.ops.kernels.partials import sum_partials
from tokmix.ops.sizes import cdiv, next_power_of_2

# Rows and warps of a program, and for the ones with sums: programs per multiprocessor, stages of the loop. The fastest on an
# H200 at 512 channels, except for the two of the middle, which were not tuned, and FACTORS, within 6 % of it.
GELU_FORWARD = (2, 2)
GELU_BACKWARD = (2, 2, 8, 3)
NORM_FORWARD = (4, 2)
NORM_BACKWARD = (2, 2, 8, 3)
SUM = (2, 8, 4)
SPREAD = (8, 4)
FACTORS = (4, 4)
MIDDLE = (8, 4)
MIDDLE_BACKWARD = (16, 4)
TILE = 1024  # channels of a program
MIDDLE_TILE = 256
SHORTEST_PIECE = 512  # tokens that pay for a separate product
WORTH_A_PRODUCT = 16384  # from this length on, a separate product with its own vector added is faster on an H200


def tile_of(width: int, most: int = TILE) -> int:
    return min(most, next_power_of_2(width))


def by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, D] -> [H, B, T, e]; with one head it is the same memory."""
    return x[None] if heads == 1 else x.unflatten(2, (heads, -1)).permute(2, 0, 1, 3).contiguous()


def merged(x: Tensor, B: int) -> Tensor:
    """[H * B, T, e] -> [B, T, D]; with one head it is the same memory."""
    return x if x.shape[0] == B else x.unflatten(0, (-1, B)).permute(1, 2, 0, 3).flatten(2)


def over_tokens(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a [S, T, e], b [S, T, i] -> aᵀ b [S, e, i] in dtype. A few long sequences are cut, so that the chip is full."""
    S, T, e = a.shape
    tiles = cdiv(e, 128) * cdiv(b.shape[2], 128) * S
    cuts = 1
    while tiles * cuts < processors(a.device) // 2 and T % (2 * cuts) == 0 and T // (2 * cuts) >= SHORTEST_PIECE:
        cuts *= 2
    if cuts == 1:
        return product(a.mT, b, dtype)
    cut = lambda x: x.unflatten(1, (cuts, -1)).flatten(0, 1)
    return product(cut(a).mT, cut(b), dtype).unflatten(0, (S, cuts)).sum(1)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in dtype: that of both, or float32."""
    if a.dtype == dtype:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=dtype) if a.is_cuda else torch.bmm(a.to(dtype), b.to(dtype))


def states_and_hidden(values: Tensor, h: Tensor, outer: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """values [H * B, T, e], h [H * B, T, i], V_1 [H, i, k] -> Mᵀ [H, B * e, i] and Mᵀ V_1 [H, B * e, k]. Where M cannot be rounded, two
    factors stand for it side by side, [H, B * e, 2 i], what its dtype can hold and the rest, and the latter is in float32."""
    by_heads = lambda matrices: matrices.view(heads, -1, matrices.shape[2])
    if not loses_digits(values.shape[1], values.shape[2], values.dtype):
        states = by_heads(over_tokens(values, h, values.dtype))
        return states, torch.bmm(states, outer)
    both = two_factors(by_heads(over_tokens(values, h, torch.float32)), values.dtype)
    return both, product(both, torch.cat([outer, outer], dim=1), torch.float32)


def two_factors(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """[H, rows, i] in float32 -> [H, rows, 2 i] in dtype: each number rounded, and its rounding error."""
    H, total, width = exact.shape
    both = torch.empty(H, total, 2 * width, dtype=dtype, device=exact.device)
    rows, warps = FACTORS
    tile = tile_of(width)
    kernels.two_factors[cdiv(H * total, rows), cdiv(width, tile)](exact, both, H * total, width, rows, tile, num_warps=warps)
    return both


class Sizes:
    def __init__(self, x: Tensor, net: Nets, tied: bool):
        self.heads, self.e, self.i = net.inner.shape
        self.k = net.outer.shape[2]
        self.B, self.T, self.D = x.shape
        self.nets = 1 if tied else 2
        self.rows = self.B * self.T
        self.kind, self.device = KINDS[x.dtype], x.device

    def new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def joined(first: Tensor | None, second: Tensor | None, tied: bool) -> Tensor | None:
    """Both nets' weights side by side in their last dimension."""
    if first is None or second is None:
        return None
    return first if tied else torch.cat([first, second], dim=-1)


def gelu_forward(p: Tensor, bias: Tensor | None, kind: object) -> Tensor:
    """[H, rows, width]"""
    heads, total, width = p.shape
    h = torch.empty_like(p)
    rows, warps = GELU_FORWARD
    tile = tile_of(width)
    grid = (cdiv(total, rows), cdiv(width, tile), heads)
    kernels.gelu_forward[grid](p, bias, h, total, width, kind, rows, tile, num_warps=warps)
    return h


def gelu_backward(p: Tensor, grads: Sequence[Tensor], bias: Tensor | None, kind: object) -> tuple[Tensor, Tensor]:
    """p [H, rows, n i], for each of the n nets dh [H, rows, i] -> dp like p and, in float32, the bias's [H, n i]."""
    heads, total, width = p.shape
    i = width // len(grads)
    # A single net's gradient overwrites dh, which nothing else reads.
    dp = grads[0] if len(grads) == 1 else torch.empty_like(p)
    rows, warps, per_processor, stages = GELU_BACKWARD
    tile = tile_of(i)
    blocks, columns = cdiv(total, rows), cdiv(i, tile)
    turns = cdiv(blocks, max(1, processors(p.device) * per_processor // (columns * heads)))
    programs = cdiv(blocks, turns)
    sums = torch.empty(len(grads), programs, heads, i, dtype=torch.float32, device=p.device)
    for net, dh in enumerate(grads):
        mine = slice(net * i, (net + 1) * i)
        kernels.gelu_backward[programs, columns, heads](
            p[..., mine], dh, None if bias is None else bias[..., mine], dp[..., mine] if len(grads) > 1 else dp, sums[net],
            total, turns, i, width, kind, rows, tile, stages, num_warps=warps,
        )  # fmt: skip
    return dp, sum_partials(sums).permute(1, 0, 2).flatten(1)


def sum_tokens(x: Tensor) -> Tensor:
    """[B, T, D] -> the sum of each sequence's tokens, [B, D] in float32."""
    B, T, D = x.shape
    rows, warps, per_processor = SUM
    tile = tile_of(D)
    pieces = max(1, min(cdiv(T, 4 * rows), per_processor * processors(x.device) // B))
    size = rows * cdiv(T, rows * pieces)
    pieces = cdiv(T, size)
    out = torch.empty(B, pieces, D, dtype=torch.float32, device=x.device)
    grid = (pieces, cdiv(D, tile), B)
    kernels.sum_tokens[grid](x, out, T, size, x.stride(0), x.stride(1), D, rows, tile, num_warps=warps)
    return sum_partials(out)


def norm_forward(z: Tensor, r: Tensor | None, gain: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    B, T, D = z.shape
    y = torch.empty_like(z)
    mean, rstd = (torch.empty(B * T, dtype=torch.float32, device=z.device) for _ in range(2))
    rows, warps = NORM_FORWARD
    grid = (cdiv(T, rows), B)
    kernels.norm_forward[grid](
        z, r, gain.contiguous(), bias.contiguous(), y, mean, rstd, T, eps, D, rows, next_power_of_2(D), num_warps=warps
    )
    return y, mean, rstd


def norm_backward(dy: Tensor, z: Tensor, r: Tensor | None, gain: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dz, the gradients of gain and bias [2, D], and the sum of dz over each sequence [B, D]."""
    B, T, D = z.shape
    dy = dy if dy.stride(-1) == 1 else dy.contiguous()
    dz = torch.empty_like(z)
    rows, warps, per_processor, stages = NORM_BACKWARD
    blocks = cdiv(T, rows)
    turns = cdiv(blocks, max(1, processors(z.device) * per_processor // B))
    pieces = cdiv(blocks, turns)
    sums = torch.empty(3, B, pieces, D, dtype=torch.float32, device=z.device)
    kernels.norm_backward[pieces, B](
        dy, z, r, gain.contiguous(), mean, rstd, dz, sums, T, dy.stride(0), dy.stride(1), turns,
        D, rows, next_power_of_2(D), stages, num_warps=warps,
    )  # fmt: skip
    return dz, sum_partials(sums[:2].flatten(1, 2)), sum_partials(sums[2])


def _middle(size: Sizes, net: Nets, tile: int, scale: Tensor | None, readout: Tensor | None) -> tuple[object, ...]:
    one = lambda factors: factors is None or factors.shape[0] == 1
    return size.B * size.e, size.heads, size.e, size.k, one(scale), one(readout), size.kind, tile, tile_of(size.k, MIDDLE_TILE)


def _float(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.float().contiguous()


def forward(
    x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None, b2: Tensor | None,
    v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None, bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x, values [B, T, D] -> y, and for the backward pass: p, h, states, m, hidden, read, z, r, mean and 1 / deviation."""
    net_in, net_out = nets(u1, b1, v1, c1, u2, b2, v2, c2)
    tied = net_out is net_in
    size = Sizes(x, net_in, tied)
    H, B, T, e, i = size.heads, size.B, size.T, size.e, size.i
    scale, readout = _float(scale), _float(readout)
    x, values = x.contiguous(), None if values is None else values.contiguous()
    xs = by_head(x, H)
    vs = xs if values is None else by_head(values, H)
    inner = joined(net_in.inner, net_out.inner, tied)
    inner_bias = joined(net_in.inner_bias, net_out.inner_bias, tied)
    assert inner is not None
    p = torch.bmm(xs.flatten(1, 2), inner.to(x.dtype))
    h = gelu_forward(p, inner_bias, size.kind)
    per_sequence = h.view(H * B, T, -1)
    states, hidden = states_and_hidden(vs.flatten(0, 1), per_sequence[..., :i], net_in.outer.to(x.dtype), H)
    biased = net_in.outer_bias is not None
    m = sum_tokens(x if values is None else values) if biased else size.new(0)
    r = size.new(B, size.D) if biased else None
    active = torch.empty_like(hidden, dtype=x.dtype)
    rows, warps = MIDDLE
    kernels.middle_forward[cdiv(B * e, rows), H](
        hidden, m if biased else None, net_in.outer_bias, net_out.outer_bias, scale, readout, active, r,
        *_middle(size, net_in, rows, scale, readout), num_warps=warps,
    )  # fmt: skip
    read = torch.bmm(active, net_out.outer.to(x.dtype).mT)  # [H, B * e, i]
    z = merged(torch.bmm(per_sequence[..., -i:], read.view(H * B, e, i).mT), B)
    kept = (p, h, states, m, hidden, read)
    if gain is None or bias is None:
        y = z if r is None else z.add_(r[:, None].to(z.dtype))
        return y, *kept, x.new_empty(0), size.new(0), size.new(0), size.new(0)
    y, mean, rstd = norm_forward(z, r, gain, bias, eps)
    return y, *kept, z, size.new(0) if r is None else r, mean, rstd


def backward(
    dy: Tensor, p: Tensor, h: Tensor, states: Tensor, m: Tensor, hidden: Tensor, read: Tensor, z: Tensor, r: Tensor, mean: Tensor,
    rstd: Tensor, x: Tensor, values: Tensor | None, u1: Tensor, b1: Tensor | None, v1: Tensor, c1: Tensor | None, u2: Tensor | None,
    b2: Tensor | None, v2: Tensor | None, c2: Tensor | None, scale: Tensor | None, readout: Tensor | None, gain: Tensor | None,
    bias: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """p to rstd: the other results of `forward`, after y. Returns the gradients of x, values, U [H, e, n i] and b [H, n i] of the n nets
    side by side, V of each [H, i, k], c of both [2, H, k] and the norm's [2, D]."""
    net_in, net_out = nets(u1, b1, v1, c1, u2, b2, v2, c2)
    tied = net_out is net_in
    size = Sizes(x, net_in, tied)
    H, B, T, D, e, i, k = size.heads, size.B, size.T, size.D, size.e, size.i, size.k
    scale, readout = _float(scale), _float(readout)
    x, values = x.contiguous(), None if values is None else values.contiguous()
    biased = net_in.outer_bias is not None
    if gain is not None:
        dz, norm, dr = norm_backward(dy, z, r if biased else None, gain, mean, rstd)
    else:
        dz, norm = dy.contiguous(), size.new(0, D)
        dr = sum_tokens(dz) if biased else size.new(0)
    xs, dzs = by_head(x, H).flatten(0, 1), by_head(dz, H).flatten(0, 1)  # [H * B, T, e]
    vs = xs if values is None else by_head(values, H).flatten(0, 1)
    per_sequence = h.view(H * B, T, -1)
    dread = over_tokens(dzs, per_sequence[..., -i:], x.dtype).view(H, B * e, i)
    outer_in = net_in.outer.to(x.dtype)
    outer_out = outer_in if tied else net_out.outer.to(x.dtype)
    dhidden = torch.bmm(dread, outer_out)
    active = torch.empty_like(dhidden)
    rows, warps = MIDDLE_BACKWARD
    programs = cdiv(B * e, rows)
    dm = size.new(B, D) if biased else None
    sums = size.new(2, programs if biased else 0, H, k)
    kernels.middle_backward[programs, H](
        dhidden, hidden, m if biased else None, dr if biased else None, net_in.outer_bias, net_out.outer_bias, scale, readout,
        active, dm, sums if biased else None, *_middle(size, net_in, rows, scale, readout), num_warps=warps,
    )  # fmt: skip
    dv2, dv1 = torch.bmm(dread.mT, active), torch.bmm(states[..., :i].mT, dhidden)
    dstates = torch.bmm(dhidden, outer_in.mT).view(H * B, e, i)
    pairs = [(vs, dstates), (dzs, read.view(H * B, e, i))]
    inner_bias = joined(net_in.inner_bias, net_out.inner_bias, tied)
    dh = [torch.bmm(*pairs[1]).baddbmm_(*pairs[0])] if tied else [torch.bmm(*pair) for pair in pairs]
    dp, db = gelu_backward(p, [each.view(H, B * T, i) for each in dh], inner_bias, size.kind)
    inner = joined(net_in.inner, net_out.inner, tied)
    assert inner is not None
    inner = inner.to(x.dtype)
    dvs = _of_values(per_sequence[..., :i], dstates, dm, H)
    dps = dvs.view(H, B * T, e).baddbmm_(dp, inner.mT) if values is None else torch.bmm(dp, inner.mT)
    dx = merged(dps.view(H * B, T, e), B)
    dvalues = x.new_empty(0) if values is None else merged(dvs, B)
    du = torch.bmm(xs.view(H, B * T, e).mT, dp)
    return dx, dvalues, du, db, dv1, dv2, sum_partials(sums), norm


def _of_values(h: Tensor, dstates: Tensor, dm: Tensor | None, heads: int) -> Tensor:
    """h [H * B, T, i] times dstates [H * B, e, i] transposed, plus in every row its sequence's part of dm [B, D]."""
    if dm is None:
        return torch.bmm(h, dstates.mT)
    S, T, _ = h.shape
    e = dstates.shape[1]
    vectors = dm if heads == 1 else dm.unflatten(1, (heads, -1)).transpose(0, 1).flatten(0, 1)  # [H * B, e]
    out = torch.empty(S, T, e, dtype=h.dtype, device=h.device)
    if T >= WORTH_A_PRODUCT:
        # cuBLAS can add a vector to the rows of a product while writing it, but only one vector for all rows.
        for vector, *one in zip(vectors.to(h.dtype), h, dstates.mT, out, strict=True):
            torch.addmm(vector, *one[:2], out=one[2])
        return out
    rows, warps = SPREAD
    tile = tile_of(e)
    kernels.spread[cdiv(T, rows), cdiv(e, tile), S](vectors, out, T, e, rows, tile, num_warps=warps)
    return out.baddbmm_(h, dstates.mT)
