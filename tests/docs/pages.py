"""The blocks of a page, run in order as a reader would: `sh` by a shell, `python` by one Python that goes on, `text` is what they print."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAME = doctest.OutputChecker().check_output


@dataclass(frozen=True)
class Block:
    line: int
    kind: str  # sh or python
    code: str
    printed: str | None  # `...` in it stands for anything


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in zip(fences, [*fences, None][1:], strict=True):
        if fence[1] not in ("sh", "python"):
            continue
        below = after is not None and after[1] == "text" and text[fence.end() : after.start()].strip() == ""
        found.append(Block(text[: fence.start()].count("\n") + 2, fence[1], fence[2], after[2] if below and after else None))
    return found


def run(page: Path, folder: Path) -> None:
    """AssertionError, naming page and line, where a block fails or prints something else."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        printed = _shell(block, folder, place) if block.kind == "sh" else _python(block, page, names)
        if block.printed is not None:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert SAME(block.printed, printed, flags), f"{place} shows\n{block.printed}\nbut prints\n{printed}"


def _python(block: Block, page: Path, names: dict[str, object]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
    return output.getvalue()


def _shell(block: Block, folder: Path, place: str) -> str:
    """With `tokmix` and `torchrun` of this Python on the path."""
    commands = folder.parent / f"{folder.name}-bin"
    commands.mkdir(exist_ok=True)
    for name, module in (("tokmix", "tokmix"), ("torchrun", "torch.distributed.run"), ("python", "")):
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {f"-m {module} " if module else ""}"$@"\n')
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block.code], capture_output=True, text=True, cwd=folder, env=environment, timeout=600
    )
    assert done.returncode == 0, f"{place} ends with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
