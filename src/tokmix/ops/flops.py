"""Matrix products inside our custom ops, for torch's FlopCounterMode, which cannot see into them.

Import this before a counter is made. It is a file of its own because torch's counter imports triton; the kernels
import it too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from tokmix.ops.causal_hyper_mix import flops as _causal_hyper_mix  # noqa: F401  (its formulas)
from tokmix.ops.hyper_mix import library as _hyper_mix  # noqa: F401  (defines the ops)
from tokmix.ops.shift_mix import library as _shift_mix  # noqa: F401

Shape = tuple[int, ...]


@register_flop_formula([getattr(torch.ops.tokmix, f"{kind}shift_mix{way}") for kind in ("", "norm_") for way in ("", "_backward")])
def no_products(*shapes: Any, **kwargs: Any) -> int:
    return 0


@register_flop_formula(torch.ops.tokmix.gate_shift_mix)
def gate(x: Shape, weight: Shape, *rest: Any, **kwargs: Any) -> int:
    return 2 * x[0] * x[1] * x[2] * weight[1]


@register_flop_formula(torch.ops.tokmix.gate_shift_mix_backward)
def gate_backward(dy: Shape, x: Shape, p: Shape, weight: Shape, *rest: Any, **kwargs: Any) -> int:
    return 2 * gate(x, weight)


@register_flop_formula(torch.ops.tokmix.hyper_mix)
def hyper_mix(x: Shape, values: Any, u1: Any, b1: Any, v1: Shape, *rest: Any, **kwargs: Any) -> int:
    """Four products a token, two a sequence."""
    heads, e, k = v1
    first = rest[11]
    sequences = x[0] if first is None else first[0] - 1
    return heads * (8 * x[0] * x[1] * e * e + 4 * sequences * e * e * k)


@register_flop_formula(torch.ops.tokmix.hyper_mix_backward)
def hyper_mix_backward(dy: Shape, states: Shape, hidden: Shape, *rest: Any, **kwargs: Any) -> int:
    """Ten products a token, four a sequence."""
    heads, _, sequences, e = states
    return heads * (20 * dy[0] * dy[1] * e * e + 8 * sequences * e * e * hidden[1])
