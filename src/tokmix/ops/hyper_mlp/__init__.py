"""HyperMLP and HyperGLU: attention scores mixed over lags, a ReLU of their normalised values, mixed again."""

from tokmix.ops.hyper_mlp.reference import Bank, by_lag, matmul_flops, relu_of_normalised
from tokmix.ops.hyper_mlp.select import hyper_mlp

__all__ = ["Bank", "by_lag", "hyper_mlp", "matmul_flops", "relu_of_normalised"]
