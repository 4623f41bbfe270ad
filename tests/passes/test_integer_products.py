"""Quantised products are products of integers, and give ONNX Runtime's integers to the bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import subtune
from subtune.frontends import load
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.passes.integer_products import integer_products
from subtune.pipeline import prepare

RNG = np.random.default_rng(0)


class Graph:
    """A QDQ model as exporters write it: every operand is dequantised, every result quantised."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._shape = shape
        self.last = self.quantised("x", 0.02, 128)

    def constant(self, array: np.ndarray) -> str:
        self._weights.append(numpy_helper.from_array(array, f"c{len(self._weights)}"))
        return str(self._weights[-1].name)

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def quantised(self, value: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        return self.op("QuantizeLinear", value, *map(self.constant, (np.float32(scale), np.array(zero, dtype))))

    def float_of(self, value: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        return self.op("DequantizeLinear", value, *map(self.constant, (np.float32(scale), np.array(zero, dtype))))

    def weight(self, shape: tuple[int, ...], channels: int, axis: int = 0) -> tuple[str, np.ndarray]:
        """int8 with a scale for each of `channels` along `axis`, or one; dequantised. And the scales."""
        bits = RNG.integers(-127, 128, shape).astype(np.int8)
        scale = (0.01 + 0.01 * RNG.random(channels)).astype(np.float32) if channels > 1 else np.float32(0.013)
        zero = np.zeros(np.shape(scale), np.int8)
        attrs = {"axis": axis} if channels > 1 else {}
        return self.op("DequantizeLinear", *map(self.constant, (bits, scale, zero)), **attrs), scale

    def bias(self, scale: np.ndarray, channels: int) -> str:
        bits, zero = RNG.integers(-4000, 4000, channels).astype(np.int32), np.zeros(np.shape(scale), np.int32)
        attrs = {"axis": 0} if np.ndim(scale) else {}
        return self.op("DequantizeLinear", *map(self.constant, (bits, scale, zero)), **attrs)

    def conv(self, value: str, cin: int, cout: int, zero: int, per_channel: bool = True, **attrs: Any) -> str:
        """Of a uint8 of scale 0.02, quantised again."""
        weight, scale = self.weight((cout, cin // attrs.get("group", 1), 3, 3), cout if per_channel else 1)
        bias = self.bias((np.float32(0.02) * scale).astype(np.float32), cout)
        return self.op("Conv", self.float_of(value, 0.02, zero), weight, bias, **attrs)

    def model(self, result: str, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, self._shape)],
            [helper.make_tensor_value_info(result, dtype, None)], self._weights,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolution(per_channel: bool = True, pad: int = 1, group: int = 1, zero: int = 128, relu: bool = False) -> Any:
    g = Graph((2, 8, 9, 10))
    y = g.conv(g.quantised("x", 0.02, zero), 8, 12, zero, per_channel, pads=[pad] * 4, group=group)
    y = g.op("Relu", y) if relu else y
    return g.model(g.quantised(y, 0.11, 3))


def residual() -> Any:
    g = Graph((1, 8, 6, 6))
    x = g.quantised(g.conv(g.last, 8, 8, 128, pads=[1] * 4), 0.02, 0)
    y = g.quantised(g.conv(x, 8, 8, 0, pads=[1] * 4), 0.07, 120)
    total = g.op("Add", g.float_of(y, 0.07, 120), g.float_of(x, 0.02, 0))
    z = g.quantised(total, 0.02, 10)
    pooled = g.op("MaxPool", g.float_of(z, 0.02, 10), kernel_shape=[2, 2], strides=[2, 2])
    z = g.quantised(pooled, 0.02, 10)
    return g.model(g.quantised(g.conv(z, 8, 5, 10), 0.1, 0))


def gemm(per_channel: bool) -> Any:
    g = Graph((4, 3, 7))
    x = g.op("Flatten", g.float_of(g.last, 0.02, 128))
    weight, scale = g.weight((6, 21), 6 if per_channel else 1)
    bias = g.bias((np.float32(0.02) * scale).astype(np.float32), 6)
    return g.model(g.quantised(g.op("Gemm", x, weight, bias, transB=1), 0.1, 100))


MODELS = {
    "conv": convolution(),
    "conv, one scale": convolution(per_channel=False),
    "conv, no padding": convolution(pad=0),
    "conv, zero is 0": convolution(zero=0),
    "conv, groups": convolution(group=4),
    "conv, relu": convolution(relu=True),
    "residual": residual(),
    "gemm": gemm(per_channel=True),
    "gemm, one scale": gemm(per_channel=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_integers_are_those_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = MODELS[name]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = (2.5 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)
    (want,) = onnxruntime_reference(model)({"x": x}).values()
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False).run({"x": x}).values()
    assert np.ptp(want.astype(int)) > 20
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", MODELS)
def test_no_product_is_left_in_floats(name: str) -> None:
    products = Counter[str]()
    for block in integer_products(load(MODELS[name]).mod)["main"].body.blocks:
        for binding in block.bindings:
            op = str(getattr(getattr(binding.value, "op", None), "name", ""))
            if op in ("relax.nn.conv2d", "relax.matmul"):
                products[str(binding.value.ty.dtype)] += 1
    assert set(products) == {"int32"}


def test_subgraphs_pass_bytes_on() -> None:
    """The residual is widened where it is added, and a subgraph stores nothing wider than a byte."""
    for subgraph in prepare(residual()).subgraphs:
        stored = [arg.dtype for arg in subgraph.workload.args if arg.is_output]
        assert stored == ["uint8"]


def test_layers_that_differ_in_their_scales_are_one_workload() -> None:
    g = Graph((1, 8, 6, 6))
    x = g.last
    for scale in (0.02, 0.05, 0.07):
        x = g.quantised(g.conv(x, 8, 8, 128, pads=[1] * 4), scale, 128)
    uses = [s.uses for s in prepare(g.model(x)).subgraphs if "conv2d" in s.name]
    assert sorted(uses) == [1, 2]  # the first one's padding is written by what quantises the input


def test_what_is_dequantised_is_moved_as_bytes(module: Any) -> None:
    table = relax.const(RNG.integers(0, 255, (40, 8)).astype(np.uint8))

    def body(ids: Any) -> Any:
        rows = relax.op.dequantize(table, relax.const(np.float32(0.5)), relax.const(3, "uint8"), 0, "float32")
        return relax.op.permute_dims(relax.op.take(rows, ids, axis=0))

    mod = integer_products(module([((5,), "int64")], body))
    made = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    named = [(str(call.op.name), str(call.ty.dtype)) for call in made if isinstance(call, tvm.ir.Call)]
    assert named == [("relax.take", "uint8"), ("relax.permute_dims", "uint8"), ("relax.dequantize", "float32")]
