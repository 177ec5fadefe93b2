"""Small benchmarks for their tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokmix.cli.main import main


def quick(what: str, *more: str, out: Path) -> tuple[int, dict[str, Any]]:
    code = main(["bench", what, "--quick", "--device", "cpu", "--threads", "1", "--out", str(out), *more])
    return code, json.loads(out.read_text())
