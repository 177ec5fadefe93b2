"""HyperMixing: a two-layer token MLP whose weights are made from the tokens."""

from tokmix.ops.hyper_mix.reference import Net, generate, hyper_mix, length_scale, matmul_flops, merge_heads, readout_scale, split_heads

__all__ = ["Net", "generate", "hyper_mix", "length_scale", "matmul_flops", "merge_heads", "readout_scale", "split_heads"]
