"""Weights as 8-bit integers, and products of integers with a scale for each token.

    x [.., K] ── largest |x| of a token ──> scale [.., 1]
    x ── QuantizeLinear by the token's scale ──> uint8 ── MatMulIntegerToFloat (int8 weights) ── · scale ──> y [.., N]

A token's scale comes from this token alone. So the other texts of a batch do not change an answer, as they would with one scale for the
whole batch (DynamicQuantizeMatMul).

Weights of products are in -63 to 63: CPUs without VNNI add two products in 16 bits, and 2 · 255 · 63 fits. An embedding's rows take the
whole byte, and only the rows of a text become float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokmix.core.optional import np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

SMALLEST = 1024  # numbers of a weight that is worth rounding
WIDTH = 32  # of a product that is worth the rounding of its input
WORD, BYTE = 63, 127  # the largest integers of a product's weights, and of others
MIDDLE = 128  # the integer of an activation of 0
LOWEST, LOW = 0.17, 32  # GELU's results end at -0.16997, and take this many integers below zero
PARTS = ("Gather", "Slice", "Squeeze", "Reshape")  # nodes that cut a weight out of a parameter
OPSET = 21  # the first with a scale for each block of QuantizeLinear
MICROSOFT = "com.microsoft"


def quantise(path: Path) -> None:
    import onnx

    model = onnx.load(path)
    _Rounding(model).run()
    onnx.save(model, path)


class _Weight(NamedTuple):
    name: str
    array: np.ndarray  # [K, N]
    table: str = ""  # the embedding whose transpose it is


class _Rounding:
    """Writes a graph's nodes again, with products of integers in place of those of float32."""

    def __init__(self, model: ModelProto):
        from onnx import numpy_helper

        self.model, self.graph = model, model.graph
        self.arrays: dict[str, np.ndarray] = {one.name: numpy_helper.to_array(one) for one in self.graph.initializer}
        self.made_by = {name: node for node in self.graph.node for name in node.output}
        self.nodes: list[NodeProto] = []
        self.done = set[str]()  # names of the values that exist by now

    def run(self) -> None:
        from onnx import helper, numpy_helper

        given = self._folded()
        self.tied = {weight.table for node in given if (weight := self._weight(node)) is not None}
        for node in given:
            weight = self._weight(node)
            if weight is not None:
                self._product(node, weight)
            elif self._looks_up(node):
                self._rows(node)
            else:
                self.nodes.append(node)
        self._keep_what_is_used()
        for name, array in list(self.arrays.items()):
            if array.dtype == np.float32 and array.ndim > 1 and array.size >= SMALLEST and not name.endswith("_scale"):
                self._stored(name, array)
        del self.graph.node[:], self.graph.initializer[:]
        self.graph.node.extend(self.nodes)
        self.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in self.arrays.items())
        del self.model.opset_import[:]
        self.model.opset_import.extend([helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)])

    def _folded(self) -> list[NodeProto]:
        """The nodes that depend on the inputs. Parts of weights become weights; a transposed embedding stays a node, and is stored once."""
        from onnx.reference import ReferenceEvaluator

        rest = []
        for node in self.graph.node:
            if node.op_type in PARTS and all(name in self.arrays for name in node.input) and len(node.output) == 1:
                given = {name: self.arrays[name] for name in node.input}
                (part,) = ReferenceEvaluator(node).run(None, given)
                self.arrays[node.output[0]] = np.asarray(part)
            else:
                rest.append(node)
        return rest

    # --- what a node is ----------------------------------------------------------------------------------------------

    def _weight(self, node: NodeProto) -> _Weight | None:
        """The weight of a product that is worth rounding."""
        if node.op_type != "MatMul":
            return None
        name, table = node.input[1], ""
        array, maker = self.arrays.get(name), self.made_by.get(name)
        if maker is not None and maker.op_type == "Transpose" and maker.input[0] in self.arrays:
            table = maker.input[0]
            array = self.arrays[table].T
        if array is not None and array.ndim == 3 and len(array) == 1:
            array = array[0]
        if array is None or array.dtype != np.float32 or array.ndim != 2 or min(array.shape) < WIDTH:
            return None
        return _Weight(name, array, table)

    def _looks_up(self, node: NodeProto) -> bool:
        table = self.arrays.get(node.input[0]) if node.op_type == "Gather" else None
        return table is not None and table.dtype == np.float32 and table.ndim == 2 and table.size >= SMALLEST

    def _after_gelu(self, name: str) -> bool:
        maker = self.made_by.get(name)
        while maker is not None and maker.op_type in ("Reshape", "Transpose"):
            maker = self.made_by.get(maker.input[0])
        return maker is not None and maker.op_type == "Gelu"

    # --- what it becomes ---------------------------------------------------------------------------------------------

    def _product(self, node: NodeProto, weight: _Weight) -> None:
        rounded, zero, scale = self._activations(node.input[0], weight.array.shape[0])
        name, y = weight.table or weight.name, node.output[0]
        whole, columns = (f"{name}_turned", f"{name}_columns_scale") if weight.table else (f"{name}_int8", f"{name}_scale")
        if name not in self.done:
            self.done.add(name)
            self._round(name, self.arrays[name] if weight.table else weight.array, 1 if weight.table else 0, WORD)
            self.arrays |= {columns: self.arrays[f"{name}_scale"].reshape(-1), "one": np.array(1, np.float32)}
            if weight.table:
                self._add("Transpose", [f"{name}_int8"], whole, perm=[1, 0])
        self._add("MatMulIntegerToFloat", [rounded, whole, "one", columns, zero], f"{y}_unscaled", domain=MICROSOFT)
        self._add("Mul", [f"{y}_unscaled", scale], y)

    def _activations(self, x: str, width: int) -> tuple[str, str, str]:
        """x as uint8, the integer of 0, and the scale of each token."""
        gelu = self._after_gelu(x)
        zero = LOW if gelu else MIDDLE
        step, least = (1 / (255 - LOW), LOWEST / LOW) if gelu else (1 / 127, 1e-12)
        if f"{x}_uint8" not in self.done:
            self.done.add(f"{x}_uint8")
            self.arrays |= {"last": np.array([-1]), f"zero_{zero}": np.array(zero, np.uint8)}
            self.arrays |= {f"step_{zero}": np.array(step, np.float32), f"least_{zero}": np.array(least, np.float32)}
            if not gelu:
                self._add("Abs", [x], f"{x}_size")
            self._add("ReduceMax", [x if gelu else f"{x}_size", "last"], f"{x}_largest", keepdims=1)
            self._add("Mul", [f"{x}_largest", f"step_{zero}"], f"{x}_wanted")
            self._add("Max", [f"{x}_wanted", f"least_{zero}"], f"{x}_token_scale")
            self._add("Shape", [f"{x}_token_scale"], f"{x}_tokens")
            self._add("Expand", [f"zero_{zero}", f"{x}_tokens"], f"{x}_zeros")
            self._add("QuantizeLinear", [x, f"{x}_token_scale", f"{x}_zeros"], f"{x}_uint8", axis=-1, block_size=width)
        return f"{x}_uint8", f"zero_{zero}", f"{x}_token_scale"

    def _rows(self, node: NodeProto) -> None:
        """Rows of a table that is stored as integers."""
        (table, ids), y = node.input, node.output[0]
        if f"{table}_int8" not in self.arrays:
            self._round(table, self.arrays[table], 1, WORD if table in self.tied else BYTE)
        self._add("Gather", [f"{table}_int8", ids], f"{y}_int8")
        self._add("Gather", [f"{table}_scale", ids], f"{y}_scale")
        self._add("Cast", [f"{y}_int8"], f"{y}_unscaled", to=1)
        self._add("Mul", [f"{y}_unscaled", f"{y}_scale"], y)

    def _stored(self, name: str, array: np.ndarray) -> None:
        """Other weights: onnxruntime turns it back into float32 once, when it loads the graph."""
        from onnx import helper

        self._round(name, array, -2, BYTE)
        del self.arrays[name]
        self.nodes.insert(0, helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [name]))
        self.nodes.insert(0, helper.make_node("Cast", [f"{name}_int8"], [f"{name}_float"], to=1))

    def _round(self, name: str, array: np.ndarray, axis: int, largest: int) -> None:
        scale = np.maximum(np.abs(array).max(axis, keepdims=True), 1e-12).astype(np.float32) / largest
        self.arrays[f"{name}_int8"], self.arrays[f"{name}_scale"] = np.round(array / scale).astype(np.int8), scale

    def _add(self, kind: str, inputs: list[str], output: str, domain: str | None = None, **attributes: int | list[int]) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))  # type: ignore[arg-type]

    def _keep_what_is_used(self) -> None:
        used = {one.name for one in self.graph.output}
        kept: list[NodeProto] = []
        for node in reversed(self.nodes):
            if used & set(node.output):
                used |= set(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.arrays = {name: array for name, array in self.arrays.items() if name in used}
