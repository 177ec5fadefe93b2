"""Machine, versions and code of a measurement."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import TypedDict

import tokmix

PACKAGES = ("tokmix", "torch", "triton", "numpy", "transformers", "flash-linear-attention", "fla-core")
SOURCE = Path(tokmix.__file__).parent


class Code(TypedDict):
    commit: str | None
    changed: bool | None
    source_sha256: str


class Machine(TypedDict, total=False):
    words: str
    device: str
    cpu: str
    cores: int | None
    threads: int
    system: str
    python: str
    versions: dict[str, str]
    gpu: str  # from here on: only with a GPU
    gpu_mib: int
    processors: int
    cuda: str | None
    cudnn: int | None
    code: Code


def in_words() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {gpu}; Python {platform.python_version()}, torch {torch.__version__}"


def describe(device: str) -> Machine:
    import torch

    found: Machine = {
        "words": in_words(),
        "device": device,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }
    if device == "cuda":
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {"gpu": card.name, "gpu_mib": card.total_memory >> 20, "processors": card.multi_processor_count}
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return found | {"code": code()}


def code() -> Code:
    """The commit, whether the tree differs from it, and a hash of the package's own files, which needs no git."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
    commit = os.environ.get("TOKMIX_COMMIT") or _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", str(SOURCE))
    return {"commit": commit, "changed": None if changed is None else bool(changed), "source_sha256": digest.hexdigest()}


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], capture_output=True, text=True, cwd=SOURCE)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
