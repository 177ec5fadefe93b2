"""The bag of words of a model folder in an exported one: the same files, with `--int8` the weights rounded to one byte each."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokmix.runtime.bag import NAME, WEIGHTS
from tokmix.training.checkpoint import load_tensors, save_tensors


def write_bag(model: Path, out: Path, int8: bool) -> None:
    shutil.copyfile(model / NAME, out / NAME)
    if not int8:
        shutil.copyfile(model / WEIGHTS, out / WEIGHTS)
        return
    tensors, _ = load_tensors(model / WEIGHTS)
    scale = tensors["weights"].abs().amax(1).clamp(min=1e-12) / 127  # [classes]
    rounded = (tensors["weights"] / scale[:, None]).round().char()
    save_tensors(out / WEIGHTS, {**tensors, "weights": rounded, "scale": scale}, {})
    (out / WEIGHTS).chmod((out / NAME).stat().st_mode)  # safetensors writes it for its owner alone; give it the rights of the other files
