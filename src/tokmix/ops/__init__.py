"""The operations inside the mixers: each folder holds a plain-torch reference that defines one, and its kernels if it
has any. `implementation("reference" | "triton")`, or TOKMIX_IMPL, forces a choice."""

from tokmix.ops.dispatch import implementation

__all__ = ["implementation"]
