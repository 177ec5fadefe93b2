"""Which implementation of an op runs: the plain-torch reference, or the Triton kernels.

    forced by `implementation("reference" | "triton")`, else by TOKMIX_IMPL, else: triton on a GPU where the op has a
    kernel for the dtype and shape that finds room there, the reference everywhere else

Forcing "triton" means kernels wherever one fits, the reference for the rest. On a CPU the kernels run in Triton's
interpreter, which TRITON_INTERPRET=1 asks for, set before Python starts.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tokmix.core import checks
from tokmix.ops import ptxas_workaround

IMPLEMENTATIONS = ("reference", "triton")
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Bytes of shared memory that a program may take: on every GPU since Ampere, on an A100, on an H100, H200 or B200.
ANY_GPU, A100, H100 = 99 * 1024, 163 * 1024, 227 * 1024


def _from_environment() -> str | None:
    given = os.environ.get("TOKMIX_IMPL") or None
    if given is not None:
        checks.one_of("TOKMIX_IMPL", given, IMPLEMENTATIONS)
    return given


# Plain globals, set without importing triton: torch.compile reads them as constants and guards on them.
_forced: str | None = _from_environment()
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


@contextmanager
def implementation(name: str | None) -> Iterator[None]:
    """Force one implementation of every op inside a `with`; None: choose by device, dtype and shape."""
    global _forced
    if name is not None:
        checks.one_of("implementation", name, IMPLEMENTATIONS)
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def forced() -> str | None:
    """The forced implementation; None if it is chosen."""
    return _forced


def use_triton(x: Tensor, dtype: torch.dtype, fits: bool, needs: int = ANY_GPU) -> bool:
    """Whether to call the kernel. x: for its device; dtype: in which the kernel would compute; fits: whether the op has
    a kernel for these shapes; needs: bytes of shared memory of its programs."""
    if _forced == "reference":
        return False
    if _forced == "triton":
        _require_kernels(x)
    elif x.device.type != "cuda" or not HAS_TRITON:
        return False
    return fits and dtype in KERNEL_DTYPES and needs <= room(x.device) and not transformed()


def room(device: torch.device) -> int:
    """Bytes of shared memory that a program may take on a device; none where our kernels are not known to compile: on GPUs
    before Ampere, on those that are not NVIDIA's, and on Hopper with a ptxas that errs (`ptxas_workaround`). In the interpreter, and
    where a GPU is only imagined, as on an H100."""
    return _room(device.type, device.index)


# A constant for torch.compile: what torch.compiler.assume_constant_result does, without loading the compiler.
room._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _room(kind: str, index: int | None) -> int:
    if kind != "cuda" or not torch.cuda.is_available():
        return H100
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip or properties.major < 8 or (properties.major == 9 and HAS_TRITON and not ptxas_workaround.choose()):
        return 0
    return int(getattr(properties, "shared_memory_per_block_optin", ANY_GPU))


def transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp, ...) or forward-mode differentiation is active. Only plain torch supports them: a kernel's
    tangent would silently be zero."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# A constant for torch.compile too: it enters the transforms of the traced code itself, and guards on those around its call.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _require_kernels(x: Tensor) -> None:
    if not HAS_TRITON:
        raise ValueError("implementation 'triton' is forced, but triton is not installed: pip install 'tokmix[kernels]'")
    if x.device.type not in ("cuda", "meta") and not INTERPRETED:
        raise ValueError(f"implementation 'triton' is forced on {x.device.type!r}: set TRITON_INTERPRET=1 before Python starts")


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype of autocast on x's device; None outside autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if device in ("cuda", "cpu") and torch.is_autocast_enabled(device) else None


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """For products that must not run in half precision. The meta device has no autocast."""
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; a small number in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
