"""The time of an import."""

from __future__ import annotations

import statistics
import subprocess
import sys

from bench.speed.machine import in_words


def import_time(repeats: int = 5) -> str:
    """What `import tokmix`, with everything public loaded, adds to `import torch`; median of fresh interpreters."""
    code = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import tokmix;"
        "[getattr(tokmix, name) for name in tokmix.__all__]; tokmix.mixers(); c = time.perf_counter(); print(b - a, c - b)"
    )
    runs = []
    for _ in range(repeats):
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        runs.append([float(number) for number in printed])
    torch_s, tokmix_s = (statistics.median(column) for column in zip(*runs, strict=True))
    return f"{in_words()}\nimport torch {torch_s:.3f} s; import tokmix adds {tokmix_s:.3f} s (median of {repeats})"
