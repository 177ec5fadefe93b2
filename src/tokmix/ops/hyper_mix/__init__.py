"""HyperMixing: a two-layer token MLP whose weights are made from the tokens."""

from tokmix.ops.hyper_mix.reference import Net, generate, length_scale, merge_heads, readout_scale, split_heads
from tokmix.ops.hyper_mix.select import Body, Norm, expected, hyper_mix, mix, select_body

__all__ = [
    "Body", "Net", "Norm", "expected", "generate", "hyper_mix", "length_scale", "merge_heads", "mix", "readout_scale", "select_body",
    "split_heads",
]  # fmt: skip
