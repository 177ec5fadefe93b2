"""Shift mixing: each token with one a fixed number of places away."""

from tokmix.ops.shift_mix.choice import gate_shift_mix, norm_shift_mix, shift_mix
from tokmix.ops.shift_mix.reference import fused, gated, matrix, partners, shifted, step_partners, weighted

__all__ = [
    "fused",
    "gate_shift_mix",
    "gated",
    "matrix",
    "norm_shift_mix",
    "partners",
    "shift_mix",
    "shifted",
    "step_partners",
    "weighted",
]
