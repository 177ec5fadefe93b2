"""Shift mixing: each token with one a fixed number of places away."""

from tokmix.ops.shift_mix.reference import fused, gated, matrix, partners, shifted, step_partners, weighted

__all__ = ["fused", "gated", "matrix", "partners", "shifted", "step_partners", "weighted"]
