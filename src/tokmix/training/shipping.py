"""A model folder with small weights (small_weights.py), as it is shipped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tokmix.core.checks import one_of
from tokmix.runs.files import finite, new_folder, seal, sha256_file, write_json
from tokmix.training import model_folder
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.small_weights import KINDS, compressed

WEIGHTS = "model.safetensors"


def store(folder: str | Path, out: Path, kind: str, more: Mapping[str, object] | None = None, readme: str | None = None) -> Path:
    """A copy of a model folder with small weights -> out. more: what else its record says; readme: in place of its README.md."""
    one_of("kind of weights", kind, KINDS)
    trained = model_folder.load(folder)  # checked, with everything that is read
    tensors, _ = load_tensors(trained.folder / WEIGHTS)
    with new_folder(out) as made:
        for file in sorted(trained.folder.iterdir()):
            if file.name not in (WEIGHTS, model_folder.RECORD, "README.md"):
                shutil.copyfile(file, made / file.name)
        text = (trained.folder / "README.md").read_text(encoding="utf-8") if readme is None else readme
        (made / "README.md").write_text(text, encoding="utf-8")
        save_tensors(made / WEIGHTS, compressed(tensors, kind), {"format": "pt"})
        files = {path.name: sha256_file(path)[1] for path in sorted(made.iterdir())}
        record = {name: value for name, value in trained.record.items() if name != "checksum"}
        write_json(made / model_folder.RECORD, seal(finite({**record, **(more or {}), "stored": kind, "files": files})), ascii=False)
    return out
