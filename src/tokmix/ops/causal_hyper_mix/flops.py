"""Products inside the causal ops, for torch's FlopCounterMode: see `tokmix.ops.flops`."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula

from tokmix.ops.causal_hyper_mix import block_op as _block_library  # noqa: F401
from tokmix.ops.causal_hyper_mix import op as _library  # noqa: F401  (defines the ops)

Shape = tuple[int, ...]


def _product(w_in: Shape, values: Shape) -> int:
    """One product of a state with a vector, for every token and head."""
    B, H, L, k = w_in
    return 2 * B * H * L * k * values[3]


@register_flop_formula(torch.ops.tokmix.causal_hyper_mix)
def causal_hyper_mix(w_in: Shape, w_out: Shape, values: Shape, *rest: object, **kwargs: object) -> int:
    """A token is written to the state twice (once for the chunks' sums, once for the states themselves), read once."""
    return 3 * _product(w_in, values)


@register_flop_formula(torch.ops.tokmix.causal_hyper_mix_backward)
def causal_hyper_mix_backward(dy: Shape, dlast: object, w_in: Shape, w_out: Shape, values: Shape, *rest: object, **kwargs: object) -> int:
    """Two more writes; then the gradients of w_out and the state, and those of w_in and values twice: inside a chunk and across chunks."""
    return 8 * _product(w_in, values)


def _in_blocks(w_in: Shape, values: Shape, block: int) -> tuple[int, int]:
    """FLOPs per column of a product with [C, C], and of a product with a state, over all blocks that have one."""
    B, H, L, k = w_in
    blocks = (L + block - 1) // block
    return 2 * B * H * blocks * block * block, 2 * B * H * (blocks - 1) * block * k * values[3]


@register_flop_formula(torch.ops.tokmix.block_hyper_mix)
def block_hyper_mix(
    w_in: Shape, w_out: Shape, values: Shape, log: object, real: object, scale: object, block: int, *rest: object, **kwargs: object
) -> int:
    """Scores, their product with the values, the sum that a block adds to the state, and the product with the state."""
    column, state = _in_blocks(w_in, values, block)
    return column * (w_in[3] + values[3]) + 2 * state


@register_flop_formula(torch.ops.tokmix.block_hyper_mix_backward)
def block_hyper_mix_backward(
    dy: Shape, w_in: Shape, w_out: Shape, values: Shape, log: object, real: object, scale: object, starts: object, kept: object, block: int,
    *rest: object, **kwargs: object,
) -> int:  # fmt: skip
    """Scores again and their gradient, the gradients of w_in, w_out and values, and the state's gradient with its share in all four."""
    column, state = _in_blocks(w_in, values, block)
    return column * (3 * w_in[3] + 2 * values[3]) + 5 * state


@register_flop_formula([torch.ops.tokmix.decayed_counts, torch.ops.tokmix.decayed_counts_backward])
def no_products(*shapes: object, **kwargs: object) -> int:
    return 0
