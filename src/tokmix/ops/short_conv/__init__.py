"""A short causal convolution over tokens, one filter a channel."""

from tokmix.ops.short_conv.select import short_conv

__all__ = ["short_conv"]
