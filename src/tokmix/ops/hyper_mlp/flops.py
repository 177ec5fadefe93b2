"""Products inside HyperMLP's ops, for torch's FlopCounterMode: see `tokmix.ops.flops`. Pairs of a query and a key at or
before it count, not the empty halves of tiles; one product, whatever factors it is split into for precision."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula

from tokmix.ops.hyper_mlp import op as _library  # noqa: F401  (defines the ops)

Shape = tuple[int, ...]


def _pairs(q: Shape) -> int:
    """Multiplications and additions of one number for each pair of one head."""
    B, _, T, _ = q
    return B * T * (T + 1)


def _ranks(down1: Shape | None, down2: Shape | None) -> tuple[int, int]:
    return down1[2] if down1 is not None else 0, down2[2] if down2 is not None else 0


@register_flop_formula(torch.ops.tokmix.hyper_mlp)
def hyper_mlp(
    q: Shape,
    k: Shape,
    v: Shape,
    down1: Shape | None,
    up1: object,
    diagonal1: object,
    control1: object,
    down2: Shape | None,
    *rest: object,
    **kwargs: object,
) -> int:
    """Scores in each of three passes (two without a first bank), u once and its way back twice; y, w and o."""
    r1, r2 = _ranks(down1, down2)
    return _pairs(q) * (q[1] * ((3 if r1 else 2) * q[3] + 3 * r1) + v[1] * (2 * r2 + v[3]))


@register_flop_formula(torch.ops.tokmix.hyper_mlp_backward)
def hyper_mlp_backward(
    do: Shape, o: object, u: object, y: object, shrink: object, q: Shape, k: Shape, v: Shape,
    down1: Shape | None, up1: object, diagonal1: object, control1: object, down2: Shape | None, *rest: object, **kwargs: object,
) -> int:  # fmt: skip
    """Scores, dq and dk; dw and dv. Of the first bank h, E, dz and two gradients, of the second G, da, w and two gradients."""
    r1, r2 = _ranks(down1, down2)
    return _pairs(q) * (q[1] * (3 * q[3] + 5 * r1) + v[1] * (2 * v[3] + 5 * r2))
