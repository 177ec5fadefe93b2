"""tokmix.transfer: a Hugging Face model -> the same model with mixers instead of attention, trained to match the old one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokmix.runs.files import JsonObject


def transfer(
    teacher: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: Any,
) -> JsonObject:
    """Write the new folder `out`, with the model in out/model -> the record of the run (model/transfer.json).

    teacher   a folder that save_pretrained wrote, with its tokenizer.json
    data      a file or folder of plain text, or several of them; or a folder of `prepare` with task="lm" and the teacher's tokenizer
    settings  stack="hypermixing(heads=4)", layers="every second", tokens=2_000_000 and the rest of TransferSettings

    ValueError for what does not work. KeyboardInterrupt after Ctrl-C, with a checkpoint saved in `out`.
    """
    from tokmix.api.fit import several
    from tokmix.core.checks import one_of
    from tokmix.training.transfer.settings import TransferSettings

    for name in settings:
        one_of("setting", name, TransferSettings.__dataclass_fields__)
    if "stack" not in settings:
        raise ValueError("stack is missing: name a mixer, such as stack='hypermixing(heads=4)'")
    asked = TransferSettings(**settings)
    from tokmix.training.transfer.run import run

    with several(data) as path:
        return run(teacher, path, out, asked, resume=resume, imports=imports, quiet=not verbose)
