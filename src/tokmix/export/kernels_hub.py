"""The ops as a kernel repository of the Hugging Face hub, for `kernels.get_kernel` and `get_local_kernel`: Python and Triton alone, so one
source serves every version of torch (their noarch variants).

    OUT/build/torch-cpu/     metadata.json, __init__.py, ops/ and the files of core/ that they import
    OUT/build/torch-cuda/    the same
    OUT/README.md, OUT/LICENSE

The package needs torch, and triton on a GPU. Its imports are relative and its custom ops have a namespace of their own, so it stands
beside an installed tokmix, and beside other versions of itself.
"""

from __future__ import annotations

import hashlib
import re
from importlib import metadata
from pathlib import Path

import tokmix
from tokmix.runs.files import check_free, new_folder, write_json, write_text

NAME = "tokmix-ops"
BACKENDS = ("cpu", "cuda")
SOURCE = Path(tokmix.__file__).parent
CORE = ("__init__.py", "checks.py", "linear.py", "positions.py", "segments.py", "token_offsets.py")
OPS = ("causal_hyper_mix", "hyper_mix", "hyper_mlp", "linear_attention", "rotary", "shift_mix", "short_conv")
IMPORT = re.compile(r"^(\s*)from tokmix\.(\S+) import", re.MULTILINE)
ABOUT = f"The operations inside tokmix's mixers: {', '.join(OPS)}. Each has a plain-torch reference; a GPU runs Triton kernels."
TOP = f'''"""{ABOUT}"""

from .core import token_offsets
from .ops import dispatch, {", ".join(OPS)}

__all__ = ["dispatch", "token_offsets", {", ".join(f'"{op}"' for op in OPS)}]
'''


def build(out: str | Path) -> str:
    """Write the new folder `out` -> the package's id, the namespace of its custom ops in torch."""
    out = Path(out)
    check_free(out)
    files = {Path("core") / name: (SOURCE / "core" / name).read_text() for name in CORE}
    files |= {path.relative_to(SOURCE): path.read_text() for path in sorted((SOURCE / "ops").rglob("*.py"))}
    digest = hashlib.sha256("".join(f"{path}\n{text}" for path, text in sorted(files.items())).encode()).hexdigest()
    name = f"{NAME.replace('-', '_')}_{digest[:12]}"
    with new_folder(out) as folder:
        for backend in BACKENDS:
            place = folder / "build" / f"torch-{backend}"
            for path, text in files.items():
                write_text(place / path, moved(text, path, name))
            write_text(place / "__init__.py", TOP)
            about = {"name": NAME, "id": name, "version": 1, "license": "Apache-2.0", "python-depends": [], "backend": {"type": backend}}
            write_json(place / "metadata.json", about)
        write_text(folder / "README.md", _readme())
        write_text(folder / "LICENSE", _license())
    return name


def moved(text: str, path: Path, name: str) -> str:
    """A source file in the form of the package: relative imports, module names of the package, ops in its namespace."""
    dots = "." * len(path.parts)
    text = IMPORT.sub(rf"\1from {dots}\2 import", text)
    text = re.sub(r'"tokmix(\.ops[\w.]*:\w+)"', r'__name__.partition(".")[0] + "\1"', text)
    return (
        text.replace('"tokmix::', f'"{name}::')
        .replace("torch.ops.tokmix.", f"torch.ops.{name}.")
        .replace("torch.ops.tokmix,", f"torch.ops.{name},")
    )


def _readme() -> str:
    return f"""---
license: apache-2.0
tags: [kernel]
---

# {NAME}

{ABOUT}

Built by `tokmix kernels` of tokmix {tokmix.__version__}.

```python
import torch
from pathlib import Path
from kernels import get_local_kernel

ops = get_local_kernel(Path("."))
print(ops.shift_mix.shifted(torch.ones(1, 4, 2), 1).shape)
```
"""


def _license() -> str:
    found = SOURCE.parent.parent / "LICENSE"
    if found.is_file():
        return found.read_text()
    return metadata.distribution("tokmix").read_text("licenses/LICENSE") or "Apache-2.0\n"
