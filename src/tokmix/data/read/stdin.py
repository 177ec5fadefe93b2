"""Standard input as a file: preparing reads its data more than once, so what comes in is kept until the process ends."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

NAME = "-"


@lru_cache(maxsize=1)
def spooled() -> Path:
    """The file that holds everything that standard input gave; read once a process."""
    folder = tempfile.mkdtemp(prefix="tokmix-stdin-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "standard input"
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    if path.stat().st_size == 0:
        raise ValueError("standard input is empty")
    return path


def format_of_content(path: Path) -> str:
    """jsonl where it begins like an object or an array, else csv, whose separator is seen from the first line."""
    from tokmix.data.read.lines import open_bytes

    with open_bytes(path) as file:
        head = file.read(4096).lstrip(b"\xef\xbb\xbf \r\n\t")
    if head.startswith(b"__label__"):
        return "txt"
    return "jsonl" if head[:1] in (b"{", b"[") else "csv"
