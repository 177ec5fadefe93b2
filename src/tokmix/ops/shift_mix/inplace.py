"""The weighted shift mix on a CPU with half of the passes over memory."""

from __future__ import annotations

from torch import Tensor

from tokmix.ops.dispatch import forced
from tokmix.ops.fast_call import unwatched
from tokmix.ops.inplace import weighted


def fits(x: Tensor, weights: list[Tensor], shifts: tuple[int, ...], places: Tensor | None) -> bool:
    """Whether x has whole rows on a CPU and all heads have one shift."""
    return (
        x.device.type == "cpu"
        and places is None
        and len(set(shifts)) == 1
        and all(weight.dtype == x.dtype for weight in weights)
        and forced() is None
        and unwatched((x, weights))
    )


def shift_mix(x: Tensor, weights: list[Tensor], shift: int) -> Tensor:
    """x [B, T, H, e], weights [H, e] or [H, 1] -> [B, T, H, e]"""
    return weighted(x, (0, shift, -shift)[: len(weights)], weights)
