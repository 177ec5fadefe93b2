"""Shift mixing: each token with one a fixed number of places away."""

from tokmix.ops.shift_mix.reference import fused, fused_rows, gated, matrix, partners, per_head, shifted, step_partners, weighted
from tokmix.ops.shift_mix.select import gate_shift_mix, has_norm_kernel, has_step_kernel, matrix_shift_mix, norm_shift_mix, shift_mix, step

__all__ = [
    "fused", "fused_rows", "gate_shift_mix", "gated", "has_norm_kernel", "has_step_kernel", "matrix", "matrix_shift_mix",
    "norm_shift_mix", "partners", "per_head", "shift_mix", "shifted", "step", "step_partners", "weighted",
]  # fmt: skip
