"""Causal HyperMixing: a running hidden state, read through a GELU."""

from tokmix.ops.causal_hyper_mix.blocks import Border, block_flops, block_step
from tokmix.ops.causal_hyper_mix.reference import CHUNK, Carry, matmul_flops, recomputed_flops
from tokmix.ops.causal_hyper_mix.select import block_hyper_mix, causal_hyper_mix

__all__ = [
    "CHUNK", "Border", "Carry", "block_flops", "block_hyper_mix", "block_step", "causal_hyper_mix", "matmul_flops", "recomputed_flops",
]  # fmt: skip
