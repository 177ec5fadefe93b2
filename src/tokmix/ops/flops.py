"""Matrix products inside our custom ops, for torch's FlopCounterMode, which does not count them.

Import this before a counter is made. It is a separate file because torch's counter imports triton.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.flop_counter import register_flop_formula

from tokmix.ops.causal_hyper_mix import flops as _causal_hyper_mix  # noqa: F401  (its formulas)
from tokmix.ops.hyper_mix import op as _hyper_mix
from tokmix.ops.hyper_mix import short_op as _short_hyper_mix  # noqa: F401
from tokmix.ops.hyper_mix import wide_op as _wide_hyper_mix  # noqa: F401
from tokmix.ops.hyper_mlp import flops as _hyper_mlp  # noqa: F401  (its formulas)
from tokmix.ops.linear_attention import op as _linear_attention  # noqa: F401
from tokmix.ops.rotary import op as _rotary  # noqa: F401
from tokmix.ops.shift_mix import matrix_op as _matrix_shift_mix  # noqa: F401
from tokmix.ops.shift_mix import op as _shift_mix  # noqa: F401
from tokmix.ops.shift_mix import step_op as _shift_step  # noqa: F401
from tokmix.ops.short_conv import op as _short_conv  # noqa: F401

Shape = tuple[int, ...]
Given = object  # other arguments of an op: shapes of tensors, numbers, or None


def _shape(of: object) -> Shape:
    """The counter passes a shape for each tensor."""
    assert isinstance(of, Iterable)
    return tuple(of)


_WITHOUT = (
    "shift_mix", "shift_mix_backward", "norm_shift_mix", "norm_shift_mix_backward", "shift_step", "short_conv", "short_conv_backward",
    "rotary", "rotary_backward",
)  # fmt: skip


@register_flop_formula([getattr(torch.ops.tokmix, name) for name in _WITHOUT])
def no_products(*shapes: Given, **kwargs: Given) -> int:
    return 0


@register_flop_formula(torch.ops.tokmix.linear_attention)
def linear_attention(q: Shape, *rest: Given, **kwargs: Given) -> int:
    """As `matmul_flops` of a layer: two products a head."""
    B, H, L, e = q
    return 4 * B * H * L * e * e


@register_flop_formula(torch.ops.tokmix.gate_shift_mix)
def gate(x: Shape, weight: Shape, *rest: Given, **kwargs: Given) -> int:
    return 2 * x[0] * x[1] * x[2] * weight[1]


@register_flop_formula(torch.ops.tokmix.gate_shift_mix_backward)
def gate_backward(dy: Shape, p: Shape, x: Shape, weight: Shape, *rest: Given, **kwargs: Given) -> int:
    return 2 * gate(x, weight)


@register_flop_formula(torch.ops.tokmix.matrix_shift_mix)
def matrix(x: Shape, a: Shape, b: Shape, c: Shape | None, *rest: Given, **kwargs: Given) -> int:
    return 2 * x[0] * x[1] * x[2] * a[1] * (2 if c is None else 3)


@register_flop_formula(torch.ops.tokmix.matrix_shift_mix_backward)
def matrix_backward(dy: Shape, x: Shape, a: Shape, b: Shape, c: Shape | None, *rest: Given, **kwargs: Given) -> int:
    return 2 * matrix(x, a, b, c)


@register_flop_formula(torch.ops.tokmix.hyper_mix)
def hyper_mix(*shapes: Given, **kwargs: Given) -> int:
    """Four products per token, two per sequence."""
    given = _hyper_mix.Inputs(*shapes)  # type: ignore[arg-type]
    (B, T, _), (heads, e, k) = _shape(given.x), _shape(given.v1)
    sequences = B if given.first is None else _shape(given.first)[0] - 1
    return heads * (8 * B * T * e * e + 4 * sequences * e * e * k)


@register_flop_formula(torch.ops.tokmix.hyper_mix_backward)
def hyper_mix_backward(dy: Shape, states: Shape, read: Shape, z: Shape, mean: Shape, rstd: Shape, *shapes: Given, **kwargs: Given) -> int:
    """Ten products per token, eight if both nets are one; five per sequence, one of them recomputed."""
    given = _hyper_mix.Inputs(*shapes)  # type: ignore[arg-type]
    heads, _, sequences, e = states
    return heads * e * e * ((16 if given.u2 is None else 20) * dy[0] * dy[1] + 10 * sequences * _shape(given.v1)[2])


@register_flop_formula(torch.ops.tokmix.wide_hyper_mix)
def wide_hyper_mix(x: Shape, values: Given, u1: Shape, b1: Given, v1: Shape, c1: Given, u2: Given, *rest: Given, **kwargs: Given) -> int:
    """The nets' own products and two more per token, two per sequence."""
    heads, e, i = u1
    nets = 1 if u2 is None else 2
    return heads * e * i * (2 * (nets + 2) * x[0] * x[1] + 4 * x[0] * v1[2])


@register_flop_formula(torch.ops.tokmix.wide_hyper_mix_backward)
def wide_hyper_mix_backward(dy: Shape, p: Shape, h: Shape, states: Shape, m: Given, hidden: Shape, *rest: Given, **kwargs: Given) -> int:
    heads, rows, i = states
    nets, e, k = p[2] // i, rows // dy[0], hidden[2]
    return heads * e * i * (2 * (2 * nets + 4) * dy[0] * dy[1] + 8 * dy[0] * k)


@register_flop_formula(torch.ops.tokmix.short_hyper_mix)
def short_hyper_mix(x: Shape, w1: Shape, *rest: Given, **kwargs: Given) -> int:
    """Two products per token; those of the nets are counted elsewhere."""
    return 4 * x[0] * x[1] * x[2] * w1[2]


@register_flop_formula(torch.ops.tokmix.short_hyper_mix_backward)
def short_hyper_mix_backward(dy: Shape, z: Given, mean: Given, rstd: Given, x: Shape, w1: Shape, *rest: Given, **kwargs: Given) -> int:
    """Five products, one of them recomputed."""
    return 10 * x[0] * x[1] * x[2] * w1[2]
