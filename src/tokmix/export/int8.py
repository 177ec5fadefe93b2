"""Weights as 8-bit integers, a quarter of the size on disk. onnxruntime turns them back into float32 once, when it loads the graph.

Products are computed in float32. onnxruntime's integer products (MatMulInteger, MatMulNBits) are no faster at these sizes, and they round
activations: a text's logits then move by 0.003 to 0.03 with what else is in its batch.
"""

from __future__ import annotations

from pathlib import Path

from tokmix.core.optional import np

SMALLEST = 1024  # numbers of a weight that is worth rounding


def quantise(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    graph = model.graph
    tables = {node.input[0] for node in graph.node if node.op_type == "Gather"}  # embeddings have a scale a row, products one a column
    for one in list(graph.initializer):
        if one.data_type != TensorProto.FLOAT or len(one.dims) < 2 or np.prod(one.dims) < SMALLEST:
            continue
        weight = numpy_helper.to_array(one)
        axis = -1 if one.name in tables else -2
        scale = np.maximum(np.abs(weight).max(axis, keepdims=True), 1e-12).astype(np.float32) / 127
        graph.initializer.remove(one)
        graph.initializer.append(numpy_helper.from_array(np.round(weight / scale).astype(np.int8), f"{one.name}_int8"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{one.name}_scale"))
        graph.node.insert(0, helper.make_node("Mul", [f"{one.name}_float", f"{one.name}_scale"], [one.name]))
        graph.node.insert(0, helper.make_node("Cast", [f"{one.name}_int8"], [f"{one.name}_float"], to=TensorProto.FLOAT))
    onnx.save(model, path)
