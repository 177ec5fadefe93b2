"""Weights of matrix products and embeddings as 8-bit integers.

A product rounds its activations a row at a time (MatMulNBits with accuracy level 4), so what else is in a batch changes no answer. Dynamic
quantisation (MatMulInteger) takes one scale for the whole batch: there a text's logits move by 0.03 with its neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.optional import np

if TYPE_CHECKING:
    import onnx

BLOCKS = (128, 64, 32, 16)  # inputs that share a scale: the widest that the model's width fills


def quantise(path: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of the trace's example, which the quantiser would take for all there are
    _fold(model.graph)
    widths = [one.dims[1] for one in _embeddings(model.graph).values()]
    block = next((size for size in BLOCKS if size <= min(widths, default=128)), BLOCKS[-1])
    _quantise_embeddings(model.graph)
    how = DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=True, accuracy_level=4, bits=8, op_types_to_quantize=("MatMul",))
    quantiser = MatMulNBitsQuantizer(model, algo_config=how, bits=8)
    quantiser.process()
    quantiser.model.save_model_to_file(str(path), use_external_data_format=False)


def _fold(graph: onnx.GraphProto) -> None:
    """Weights that the graph picks from a stack or transposes become weights themselves: the quantiser looks at no others."""
    from onnx import helper, numpy_helper

    values = {one.name: one for one in graph.initializer}
    for node in list(graph.node):
        if node.op_type not in ("Gather", "Transpose") or any(name not in values for name in node.input):
            continue
        given = [numpy_helper.to_array(values[name]) for name in node.input]
        settings = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        found = given[0].take(given[1], settings.get("axis", 0)) if node.op_type == "Gather" else given[0].transpose(settings.get("perm"))
        made = numpy_helper.from_array(np.ascontiguousarray(found), node.output[0])
        graph.initializer.append(made)
        values[made.name] = made
        graph.node.remove(node)
    _drop_unused(graph)


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input}
    for one in [one for one in graph.initializer if one.name not in used]:
        graph.initializer.remove(one)


def _embeddings(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The tables of floats that rows are picked from: name of the node's output -> table."""
    values = {one.name: one for one in graph.initializer if one.data_type == 1 and len(one.dims) == 2}
    return {node.output[0]: values[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in values}


def _quantise_embeddings(graph: onnx.GraphProto) -> None:
    """A table of integers and a scale for each of its rows."""
    from onnx import TensorProto, helper, numpy_helper

    tables = _embeddings(graph)
    for place, node in [(i, node) for i, node in enumerate(graph.node) if node.op_type == "Gather" and node.output[0] in tables][::-1]:
        out, ids = node.output[0], node.input[1]
        table = numpy_helper.to_array(tables[out])  # [V, D]
        scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-12).astype(np.float32) / 127
        graph.initializer.append(numpy_helper.from_array(np.round(table / scale).astype(np.int8), f"{out}_int8"))
        graph.initializer.append(numpy_helper.from_array(scale, f"{out}_scale"))
        graph.node.remove(node)
        new = [
            helper.make_node("Gather", [f"{out}_int8", ids], [f"{out}_rounded"]),
            helper.make_node("Cast", [f"{out}_rounded"], [f"{out}_float"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [f"{out}_scale", ids], [f"{out}_scales"]),
            helper.make_node("Mul", [f"{out}_float", f"{out}_scales"], [out]),
        ]
        for i, one in enumerate(new):
            graph.node.insert(place + i, one)
    _drop_unused(graph)
