"""HyperMixing: a two-layer token MLP whose weights are made from the tokens."""

from tokmix.ops.hyper_mix.reference import Net, generate, length_scale, merge_heads, readout_scale, split_heads
from tokmix.ops.hyper_mix.select import Norm, has_kernel, hyper_mix, matmul_flops, mix

__all__ = [
    "Net",
    "Norm",
    "generate",
    "has_kernel",
    "hyper_mix",
    "length_scale",
    "matmul_flops",
    "merge_heads",
    "mix",
    "readout_scale",
    "split_heads",
]
