"""Exported models without torch: onnxruntime, tokenizers and numpy are enough.

    model = tokmix.runtime.load("exported")
    model.predict(["a fine film"])            # ["good"]
    model.predict_proba(["a fine film"])      # [[0.03, 0.97]]
    model.embed(["a fine film"])              # [1, D]

folder.py  what an exported folder holds     model.py     texts in, answers out; the base of every model that is served
onnx.py    the graph in onnxruntime          states.py    decoding states: rows of numpy arrays
sampling.py  the next token                  text.py      text from tokens as they come
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokmix.runtime.onnx import OnnxModel

__all__ = ["load"]


def load(folder: str | Path, threads: int | None = None) -> OnnxModel:
    """A folder that `tokmix export --format onnx` wrote. threads: of one computation; None: onnxruntime decides."""
    from tokmix.runtime.onnx import load as load_onnx

    return load_onnx(folder, threads)
