"""The machine and the versions of a measurement, for records. They name neither host nor user."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

import tokmix

PACKAGES = ("numpy", "transformers", "tokenizers", "safetensors", "datasets", "scikit-learn", "optuna", "triton")


def machine() -> dict[str, str | int | None]:
    """cores: those this process may use; threads: those that torch uses; gpu: None if there is none."""
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpus[0] if gpus else None,
        "gpus": len(gpus),
    }


def memory_of(device: torch.device) -> int | None:
    """Most bytes of memory of a process there: of the machine, its container, or the GPU; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            there = min(there, int(Path(path).read_text()))
        except (OSError, ValueError):  # another system, or "max"
            continue
    return there


def versions() -> dict[str, str]:
    """Versions of installed packages, without importing them."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "tokmix": tokmix.__version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
