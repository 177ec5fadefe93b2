"""Which ptxas turns the kernels into machine code on Hopper GPUs (H100, H200).

ptxas of CUDA 12.8, which Triton 3.6 uses there, sometimes leaves a uniform register unset: half of the descriptor of a factor in
shared memory. As far as we see, this happens if two factors begin at the same address. The kernel then reads wrong numbers, or
outside of memory. ptxas 12.9, which Triton 3.6 has for Blackwell GPUs, compiles the same PTX correctly; later Tritons use it for all.
"""

from __future__ import annotations

import os
import re
import warnings

SOUND = (12, 9)
CHOICE = "TRITON_PTXAS_PATH"  # Triton's own variable; a value set by the user stays


def choose() -> bool:
    """Make Triton use a correct ptxas if it has one -> whether it has."""
    path, version = _tool("ptxas")
    if version >= SOUND:
        return True
    other, others = _tool("ptxas_blackwell")
    if not os.environ.get(CHOICE) and others >= SOUND:
        os.environ[CHOICE] = other
        return True
    message = f"{path} makes wrong code for this GPU, so plain torch runs instead of kernels; set {CHOICE} to ptxas 12.9 or later"
    warnings.warn(message, stacklevel=2)
    return False


def _tool(name: str) -> tuple[str, tuple[int, ...]]:
    """Its path and version; None if Triton does not include it."""
    from triton import knobs

    try:
        tool = getattr(knobs.nvidia, name)
    except (AttributeError, RuntimeError):
        return "", ()
    return tool.path, tuple(int(part) for part in re.findall(r"\d+", tool.version)[:2])
