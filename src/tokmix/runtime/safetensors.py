"""Arrays from a safetensors file by numpy alone: the length of the header (8 bytes), the header as JSON, the numbers."""

from __future__ import annotations

import json
from pathlib import Path

from tokmix.core.optional import np

DTYPES = {"F32": "<f4", "F64": "<f8", "I8": "i1", "I64": "<i8"}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, facts in header.items():
        first, last = (start + place for place in facts["data_offsets"])
        found[name] = np.frombuffer(content[first:last], dtype=DTYPES[facts["dtype"]]).reshape(facts["shape"])
    return found
