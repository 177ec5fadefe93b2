"""Linear attention: a softmax replaced by a product of features, so that sums over keys can be shared."""

from tokmix.ops.linear_attention.reference import Carry, bidirectional, causal, features, matmul_flops
from tokmix.ops.linear_attention.select import read

__all__ = ["Carry", "bidirectional", "causal", "features", "matmul_flops", "read"]
