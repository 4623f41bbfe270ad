"""Small models quantised to float8e4m3fn, as exporters write them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

E4M3 = ml_dtypes.float8_e4m3fn


class Float8Graph:
    """Nodes in the order of their calls; every method gives the name of what it makes. `x` is the float32 input."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(0)
        self._shape, self._nodes, self._weights = shape, list[Any](), list[Any]()

    def constant(self, value: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._weights)}"))
        return str(self._weights[-1].name)

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=f"{kind}_{len(self._nodes)}", **attrs))
        return name

    def quantised(self, value: str, scale: float) -> str:
        return self.op("QuantizeLinear", value, self.constant(np.float32(scale)), self.constant(np.zeros((), E4M3)))

    def floats(self, value: str, scale: float) -> str:
        return self.op("DequantizeLinear", value, self.constant(np.float32(scale)), self.constant(np.zeros((), E4M3)))

    def rounded(self, value: str, scale: float) -> str:
        return self.floats(self.quantised(value, scale), scale)

    def weight(self, shape: tuple[int, ...], axis: int) -> str:
        numbers, scales = (50 * self.rng.standard_normal(shape)).astype(E4M3), 0.01 * (1 + self.rng.random(shape[axis]))
        parts = (numbers, scales.astype(np.float32), np.zeros(shape[axis], E4M3))
        return self.op("DequantizeLinear", *map(self.constant, parts), axis=axis)

    def bias(self, count: int) -> str:
        return self.constant(self.rng.standard_normal(count).astype(np.float32))

    def model(self, result: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
                 for name, dims in (("x", self._shape), (result, shape))]  # fmt: skip
        graph = helper.make_graph(self._nodes, "g", infos[:1], infos[1:], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def dense(m: int, k: int, n: int, floats: bool = False) -> onnx.ModelProto:
    """A product with a bias and a Relu. Its result is stored in 8 bits, and read by a reduction; or as `floats`."""
    g = Float8Graph((m, k))
    y = g.op("Add", g.op("MatMul", g.rounded("x", 0.02), g.weight((k, n), 1)), g.bias(n))
    y = g.rounded(g.op("Relu", y), 0.5)
    if floats:
        return g.model(y, (m, n))
    return g.model(g.op("ReduceMax", y, g.constant(np.array([1])), keepdims=1), (m, 1))


def convolution(cin: int, cout: int, size: int, stride: int = 1) -> onnx.ModelProto:
    """3x3, padded, with a bias and a Relu; its result, in 8 bits, is turned to channels first."""
    g, out = Float8Graph((1, cin, size, size)), (size - 1) // stride + 1
    attrs = {"pads": [1] * 4, "strides": [stride] * 2}
    y = g.op("Conv", g.rounded("x", 0.02), g.weight((cout, cin, 3, 3), 0), g.bias(cout), **attrs)
    return g.model(g.rounded(g.op("Relu", y), 0.5), (1, cout, out, out))
