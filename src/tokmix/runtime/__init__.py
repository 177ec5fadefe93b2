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

from tokmix.runtime.onnx import load

__all__ = ["load"]
