"""Rotary position codes: pairs of channels turned by an angle that grows with the position."""

from tokmix.ops.rotary.select import rotate

__all__ = ["rotate"]
