"""Which ptxas turns the kernels into machine code on Hopper GPUs (H100, H200).

That of CUDA 12.8, which Triton 3.6 takes there, now and then leaves a uniform register unset: half of the descriptor by which tensor
cores find a factor in shared memory, as far as we see where two factors begin at the same place. The kernel then reads wrong
numbers, or where no memory is. The same PTX is right under 12.9, which Triton 3.6 brings along for Blackwell GPUs; later Tritons
have it for all.
"""

from __future__ import annotations

import os
import re
import warnings

SOUND = (12, 9)
CHOICE = "TRITON_PTXAS_PATH"  # Triton's own; what the user has set stays


def choose() -> bool:
    """Makes Triton take one that is sound, if it has any. -> whether it does."""
    path, version = _tool("ptxas")
    if version >= SOUND:
        return True
    other, others = _tool("ptxas_blackwell")
    if not os.environ.get(CHOICE) and others >= SOUND:
        os.environ[CHOICE] = other
        return True
    told = f"{path} makes wrong code for this GPU, so plain torch runs instead of kernels; set {CHOICE} to ptxas 12.9 or later"
    warnings.warn(told, stacklevel=2)
    return False


def _tool(name: str) -> tuple[str, tuple[int, ...]]:
    """Its path and version; nothing where Triton does not bring it along."""
    from triton import knobs

    try:
        tool = getattr(knobs.nvidia, name)
    except (AttributeError, RuntimeError):
        return "", ()
    return tool.path, tuple(int(part) for part in re.findall(r"\d+", tool.version)[:2])
