"""Which ptxas turns the kernels into machine code on Hopper GPUs (H100, H200).

That of CUDA 12.8, which Triton 3.6 takes there, now and then leaves a uniform register unset: half of the descriptor by which tensor
cores find a factor in shared memory, as far as we see where two factors begin at the same place. The kernel then reads wrong
numbers, or where no memory is. The same PTX is right under 12.9, which Triton 3.6 brings along for Blackwell GPUs; later Tritons
have it for all.
"""

from __future__ import annotations

import os
import re

SOUND = (12, 9)
CHOICE = "TRITON_PTXAS_PATH"  # Triton's own; what the user has set stays


def choose() -> bool:
    """Makes Triton take one that is sound, if it has any. -> whether it does."""
    from triton import knobs

    if _version(knobs.nvidia.ptxas) >= SOUND:
        return True
    other = getattr(knobs.nvidia, "ptxas_blackwell", None)
    if os.environ.get(CHOICE) or other is None or _version(other) < SOUND:
        return False
    os.environ[CHOICE] = other.path
    return True


def _version(tool: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(getattr(tool, "version", "")))[:2])
