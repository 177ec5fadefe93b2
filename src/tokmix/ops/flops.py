"""Matrix products inside our custom ops, for torch's FlopCounterMode, which does not count them.

Import this before a counter is made. It is a separate file because torch's counter imports triton. The counter passes shapes in place of
tensors. One product counts once, whatever factors it is split into for precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch.utils.flop_counter import register_flop_formula

from tokmix.ops.causal_hyper_mix import block_op
from tokmix.ops.causal_hyper_mix import op as causal
from tokmix.ops.fast_call import Gradient, KernelOp
from tokmix.ops.hyper_mix import op as narrow
from tokmix.ops.hyper_mix import short_op as short
from tokmix.ops.hyper_mix import wide_op as wide
from tokmix.ops.hyper_mlp import op as mlp
from tokmix.ops.linear_attention import op as linear
from tokmix.ops.rotary import op as rotary
from tokmix.ops.shift_mix import matrix_op as matrix
from tokmix.ops.shift_mix import op as shift
from tokmix.ops.shift_mix import step_op as step
from tokmix.ops.short_conv import op as conv

Formula = TypeVar("Formula", bound=Callable[..., int])


def counts(*ops: KernelOp) -> Callable[[Formula], Formula]:
    """Register (*groups of arguments) -> FLOPs as the formula of these ops."""

    def register(formula: Formula) -> Formula:
        for op in ops:
            packet = getattr(torch.ops.tokmix, op.name.partition("::")[2])
            register_flop_formula(packet)(lambda *shapes, op=op, **kwargs: formula(*op.grouped(shapes)))
        return formula

    return register


def sizes(shape: object) -> tuple[int, ...]:
    """A shape that stands in place of a tensor."""
    assert isinstance(shape, Iterable)
    return tuple(shape)


@counts(
    shift.forward, shift.backward, shift.norm_forward, shift.norm_backward, step.forward, conv.forward, conv.backward, rotary.forward,
    rotary.backward, causal.counts_forward, causal.counts_backward,
)  # fmt: skip
def no_products(*groups: object) -> int:
    return 0


@counts(linear.forward)
def linear_attention(given: linear.Inputs) -> int:
    """As `matmul_flops` of a layer: two products a head."""
    B, H, L, e = sizes(given.q)
    return 4 * B * H * L * e * e


@counts(matrix.gate_forward)
def gate(given: matrix.GateInputs) -> int:
    B, T, D = sizes(given.x)
    return 2 * B * T * D * sizes(given.weight)[1]


@counts(matrix.gate_backward)
def gate_backward(d: Gradient, saved: matrix.GateSaved, given: matrix.GateInputs) -> int:
    return 2 * gate(given)


@counts(matrix.forward)
def matrices(given: shift.Inputs) -> int:
    B, T, D = sizes(given.x)
    return 2 * B * T * D * sizes(given.a)[1] * (2 if given.c is None else 3)


@counts(matrix.backward)
def matrices_backward(d: Gradient, given: shift.Inputs) -> int:
    return 2 * matrices(given)


@counts(narrow.forward)
def hyper_mix(given: narrow.Inputs) -> int:
    """Four products per token, two per sequence."""
    (B, T, _), (heads, e, k) = sizes(given.x), sizes(given.v1)
    sequences = B if given.first is None else sizes(given.first)[0] - 1
    return heads * (8 * B * T * e * e + 4 * sequences * e * e * k)


@counts(narrow.backward)
def hyper_mix_backward(d: Gradient, saved: narrow.Saved, given: narrow.Inputs) -> int:
    """Ten products per token, eight if both nets are one; five per sequence, one of them recomputed."""
    (B, T, _), (heads, _, sequences, e) = sizes(d.dy), sizes(saved.states)
    return heads * e * e * ((16 if given.u2 is None else 20) * B * T + 10 * sequences * sizes(given.v1)[2])


@counts(wide.forward)
def wide_hyper_mix(given: wide.Inputs) -> int:
    """The nets' own products and two more per token, two per sequence."""
    (B, T, _), (heads, e, i), nets = sizes(given.x), sizes(given.u1), 1 if given.u2 is None else 2
    return heads * e * i * (2 * (nets + 2) * B * T + 4 * B * sizes(given.v1)[2])


@counts(wide.backward)
def wide_hyper_mix_backward(d: Gradient, saved: wide.Saved, given: wide.Inputs) -> int:
    (B, T, _), (heads, e, i), nets = sizes(given.x), sizes(given.u1), 1 if given.u2 is None else 2
    return heads * e * i * (2 * (2 * nets + 4) * B * T + 8 * B * sizes(given.v1)[2])


@counts(short.forward)
def short_hyper_mix(given: short.Inputs) -> int:
    """Two products per token; those of the nets are counted elsewhere."""
    B, T, D = sizes(given.x)
    return 4 * B * T * D * sizes(given.w1)[2]


@counts(short.backward)
def short_hyper_mix_backward(d: Gradient, saved: short.Saved, given: short.Inputs) -> int:
    """Five products, one of them recomputed."""
    B, T, D = sizes(given.x)
    return 10 * B * T * D * sizes(given.w1)[2]


def _state(given: causal.Inputs) -> int:
    """One product of a state with a vector, for every token and head."""
    B, H, L, k = sizes(given.w_in)
    return 2 * B * H * L * k * sizes(given.values)[3]


@counts(causal.forward)
def causal_hyper_mix(given: causal.Inputs) -> int:
    """A token is written to the state twice (once for the chunks' sums, once for the states themselves), read once."""
    return 3 * _state(given)


@counts(causal.backward)
def causal_hyper_mix_backward(d: causal.TwoGradients, given: causal.Inputs, saved: causal.Saved) -> int:
    """Two more writes; then the gradients of w_out and the state, and those of w_in and values twice: inside a chunk and across chunks."""
    return 8 * _state(given)


def _in_blocks(given: block_op.Inputs) -> tuple[int, int, int, int]:
    """FLOPs per column of a product with [C, C], and of a product with a state, over all blocks that have one; then k and e."""
    (B, H, L, k), e, C = sizes(given.w_in), sizes(given.values)[3], given.block
    blocks = (L + C - 1) // C
    return 2 * B * H * blocks * C * C, 2 * B * H * (blocks - 1) * C * k * e, k, e


@counts(block_op.forward)
def block_hyper_mix(given: block_op.Inputs) -> int:
    """Scores, their product with the values, the sum that a block adds to the state, and the product with the state."""
    column, state, k, e = _in_blocks(given)
    return column * (k + e) + 2 * state


@counts(block_op.backward)
def block_hyper_mix_backward(d: Gradient, saved: block_op.Saved, given: block_op.Inputs) -> int:
    """Scores again and their gradient, the gradients of w_in, w_out and values, and the state's gradient with its share in all four."""
    column, state, k, e = _in_blocks(given)
    return column * (3 * k + 2 * e) + 5 * state


def _pairs(given: mlp.Inputs) -> tuple[int, int, int, int, int, int, int]:
    """Multiplications and additions of one number for each pair of a query and a key at or before it, of one head, without the empty
    halves of tiles; then the heads of q, e, the heads of v, f, and the ranks of both banks."""
    (B, Hq, T, e), (_, H, _, f) = sizes(given.q), sizes(given.v)
    r1, r2 = (0 if down is None else sizes(down)[2] for down in (given.down1, given.down2))
    return B * T * (T + 1), Hq, e, H, f, r1, r2


@counts(mlp.forward)
def hyper_mlp(given: mlp.Inputs) -> int:
    """Scores in each of three passes (two without a first bank), u once and its way back twice; y, w and o."""
    pairs, Hq, e, H, f, r1, r2 = _pairs(given)
    return pairs * (Hq * ((3 if r1 else 2) * e + 3 * r1) + H * (2 * r2 + f))


@counts(mlp.backward)
def hyper_mlp_backward(d: mlp.Gradient, saved: mlp.Outputs, given: mlp.Inputs) -> int:
    """Scores, dq and dk; dw and dv. Of the first bank h, E, dz and two gradients, of the second G, da, w and two gradients."""
    pairs, Hq, e, H, f, r1, r2 = _pairs(given)
    return pairs * (Hq * (3 * e + 5 * r1) + H * (2 * f + 5 * r2))
