"""Small quantised models as exporters write them: every operand is dequantised, every result quantised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F = np.float32


class QdqGraph:
    """Nodes in the order of their calls; every method gives the name of what it makes.

    The float32 inputs `x0`, `x1`, ... are quantised by `scale`, `zero` and `dtype`; `inputs` are names of the results.
    """

    def __init__(
        self, *shapes: Sequence[int], dtype: str = "uint8", scale: float = 0.02, zero: int = 128, opset: int = 17
    ) -> None:
        self.rng = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._shapes, self._opset = shapes, opset
        self.dtype, self.scale, self.zero = dtype, scale, zero
        self.inputs = [self.quantised(f"x{i}", scale, zero, dtype) for i in range(len(shapes))]

    def constant(self, value: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._weights)}"))
        return str(self._weights[-1].name)

    def ops(self, kind: str, *inputs: str, count: int = 1, **attrs: Any) -> list[str]:
        names = [f"v{len(self._nodes)}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{len(self._nodes)}", **attrs))
        return names

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        return self.ops(kind, *inputs, **attrs)[0]

    def quantised(self, value: str, scale: float, zero: int, dtype: str = "") -> str:
        parts = (F(scale), np.array(zero, dtype or self.dtype))
        return self.op("QuantizeLinear", value, *map(self.constant, parts))

    def floats(self, value: str, scale: float, zero: int, dtype: str = "") -> str:
        parts = (F(scale), np.array(zero, dtype or self.dtype))
        return self.op("DequantizeLinear", value, *map(self.constant, parts))

    def operand(self, index: int = 0) -> str:
        """An input, dequantised."""
        return self.floats(self.inputs[index], self.scale, self.zero)

    def weight(
        self, shape: Sequence[int], axis: int | None = 0, dtype: str = "int8", zero: int = 0, scale: float = 0.01
    ) -> tuple[str, np.ndarray]:
        """A weight of random bytes, dequantised by scales along `axis` or by one; and the scales."""
        limits = np.iinfo(dtype)
        bits = self.rng.integers(limits.min, limits.max + 1, tuple(shape)).astype(dtype)
        dims = () if axis is None else (shape[axis],)
        scales = (scale * (1 + self.rng.random(dims))).astype(F)
        parts = map(self.constant, (bits, scales, np.full(dims, zero, dtype)))
        return self.op("DequantizeLinear", *parts, **({} if axis is None else {"axis": axis})), scales

    def bias(self, count: int, scales: np.ndarray, kind: str = "int32") -> str:
        """int32 on the grid of the product, dequantised, or the same as floats."""
        bits, step = self.rng.integers(-4000, 4000, count).astype(np.int32), (F(self.scale) * scales).astype(F)
        if kind == "float":
            return self.constant((bits * step).astype(F))
        parts = map(self.constant, (bits, step, np.zeros(step.shape, np.int32)))
        return self.op("DequantizeLinear", *parts, **({"axis": 0} if step.ndim else {}))

    def model(self, *results: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, dims) for i, dims in enumerate(self._shapes)]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph(self._nodes, "g", infos, outputs, self._weights)
        opsets = [helper.make_opsetid("", self._opset), helper.make_opsetid("com.microsoft", 1)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def feeds_of(model: onnx.ModelProto, spread: float = 2.5) -> dict[str, np.ndarray]:
    """Random inputs, a few of which lie outside of the usual grids."""
    rng = np.random.default_rng(1)
    shapes = {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in model.graph.input}
    return {name: (spread * rng.standard_normal(dims)).astype(F) for name, dims in shapes.items()}
