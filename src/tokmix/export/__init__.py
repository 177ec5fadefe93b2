"""A trained model as a graph that runs elsewhere: `tokmix export MODEL --format onnx|torch`.

graphs.py       the model as a function of tensors alone, for both kinds of graph
run.py          traces, checks against the model, writes the folder
check.py        the comparison at several shapes
torch_model.py  a model folder behind the same methods as an exported one
"""

from __future__ import annotations

from tokmix.export.run import export

__all__ = ["export"]
