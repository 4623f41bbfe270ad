"""What stays in floats of a quantised model is named as the model names it, with its reason; and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune import frontends
from subtune.core.graph import InFloats
from subtune.passes.in_floats import in_floats
from subtune.passes.integer_products import integer_products
from subtune.passes.widen import widen
from subtune.pipeline import prepare
from tests.qdq_graph import F, QdqGraph

IMAGE = (2, 8, 9, 10)


def left(model: Any) -> list[tuple[str, str]]:
    """Operators and reasons."""
    return [(one.op, one.reason) for one in in_floats(integer_products(widen(frontends.load(model).mod)))]


def linear(dtype: str = "uint8", axis: int | None = 1, scale: float = 0.02) -> tuple[QdqGraph, str]:
    g = QdqGraph((7, 48), dtype=dtype, zero=0, scale=scale, opset=21)
    w, _ = g.weight((48, 24), axis)
    return g, g.op("MatMul", g.operand(), w)


def whole() -> onnx.ModelProto:
    """Residual, activation, pool: bytes to bytes all along; a GELU of several operators, too."""
    g = QdqGraph(IMAGE)
    w, scales = g.weight((8, 8, 3, 3))
    y = g.floats(g.quantised(g.op("Conv", g.operand(), w, g.bias(8, scales), pads=[1] * 4), 0.1, 3), 0.1, 3)
    y = g.floats(g.quantised(g.op("Relu", g.op("Add", y, g.operand())), 0.1, 0), 0.1, 0)
    inner = g.op("Add", g.op("Erf", y), g.constant(F(1)))
    y = g.floats(g.quantised(g.op("Transpose", g.op("Mul", y, inner), perm=[0, 2, 3, 1]), 0.2, 0), 0.2, 0)
    return g.model(g.quantised(g.op("ReduceMean", y, axes=[1, 2]), 0.1, 0))


def rows(op: str) -> Callable[[], onnx.ModelProto]:
    """A product whose result is not quantised before a sum; the bias is the product's own affair."""

    def build() -> onnx.ModelProto:
        g, y = linear()
        y = g.op("Relu", g.op("Add", y, g.constant(g.rng.random(24, F))))
        return g.model(g.op(op, y, g.constant(np.array([1]))) if op else y)

    return build


def by_blocks() -> onnx.ModelProto:
    g = QdqGraph((7, 48), opset=21)
    bits, scales = g.rng.integers(-8, 8, (48, 24)).astype(np.int8), g.rng.random((3, 24), F)
    w = g.op("DequantizeLinear", g.constant(bits), g.constant(scales), axis=0, block_size=16)
    return g.model(g.quantised(g.op("MatMul", g.operand(), w), 0.2, 0))


def with_floats() -> onnx.ModelProto:
    """The sum of what was quantised and of an input that was not; the Relu behind it follows from that."""
    g = QdqGraph(IMAGE, IMAGE)
    total = g.op("Relu", g.op("Add", g.operand(), "x1"))
    return g.model(g.quantised(g.op("Mul", total, g.operand()), 0.1, 0))


def normalised() -> onnx.ModelProto:
    g = QdqGraph((30, 48), (30, 48))
    total = g.op("Add", g.operand(0), g.operand(1))
    shift = [g.constant(g.rng.random(48, F)) for _ in range(2)]
    return g.model(g.quantised(g.op("LayerNormalization", total, *shift, axis=-1), 0.03, 128))


def returned() -> onnx.ModelProto:
    g = QdqGraph(IMAGE)
    return g.model(g.op("Tanh", g.operand()))


def float_operand(index: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        g = QdqGraph((7, 48))
        w = g.constant(g.rng.random((48, 24), F)) if index else g.weight((48, 24), 1)[0]
        return g.model(g.quantised(g.op("MatMul", g.operand() if index else "x0", w), 0.2, 0))

    return build


def quantised_by_itself(is_multiplied: bool = True) -> onnx.ModelProto:
    """A product by DynamicQuantizeLinear whose result, times another tensor or as it is, is quantised so again."""
    g = QdqGraph((7, 48), (7, 24))
    bits = [g.constant(g.rng.integers(-128, 128, (n, 24)).astype(np.int8)) for n in (48, 24)]

    def product(x: str, w: str) -> str:
        q, scale, zero = g.ops("DynamicQuantizeLinear", x, count=3)
        return g.op("Mul", g.op("Cast", g.op("MatMulInteger", q, w, zero), to=1), scale)

    y = product("x0", bits[0])
    return g.model(product(g.op("Mul", y, g.op("Sigmoid", y)) if is_multiplied else y, bits[1]))


def turned(axis: int | None = None) -> onnx.ModelProto:
    g = QdqGraph(IMAGE)
    w, _ = g.weight((8, 4, 2, 2), axis)
    return g.model(g.quantised(g.op("ConvTranspose", g.operand(), w, strides=[2, 2]), 0.1, 0))


def one_row() -> onnx.ModelProto:
    g = QdqGraph((1, 64), (64, 48))
    return g.model(g.quantised(g.op("MatMul", g.operand(0), g.operand(1)), 0.3, 0))


def run_time_scale() -> onnx.ModelProto:
    g = QdqGraph((7, 48), (1,))
    x = g.op("DequantizeLinear", g.inputs[0], g.op("Reshape", "x1", g.constant(np.zeros(0, np.int64))))
    w, _ = g.weight((48, 24), 1)
    return g.model(g.quantised(g.op("MatMul", x, w), 0.2, 0))


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], list[tuple[str, str]]]] = {
    "bytes all along": (whole, []),
    "a product and its bias": (rows(""), []),
    "a sum of a product": (rows("ReduceMean"), []),
    "no bytes": (
        lambda: (lambda g, y: g.model(g.quantised(y, 0.2, 0)))(*linear("uint16", scale=1e-4)),
        [("matmul", "its first operand is uint16, and products are of bytes")],
    ),
    "scales along the sum": (
        lambda: (lambda g, y: g.model(g.quantised(y, 0.2, 0)))(*linear(axis=0)),
        [("matmul", "its second operand has scales along the axis that is summed")],
    ),
    "blocks": (by_blocks, [("matmul", "its second operand has a scale for each block")]),
    "float weights": (float_operand(1), [("matmul", "its second operand is not quantised")]),
    "float input": (float_operand(0), [("matmul", "its first operand is not quantised")]),
    "scale of run time": (
        run_time_scale,
        [("matmul", "its first operand has a scale or zero point that is not constant")],
    ),
    "a sum with floats": (with_floats, [("add", "its second operand is not quantised")]),
    "a sum that is normalised": (normalised, [("add", "its result is not quantised: layer_norm reads it")]),
    "a result": (returned, [("tanh", "its result is returned in floats")]),
    "quantised by itself": (quantised_by_itself, [("multiply", "the scale of its result is not constant")]),
    "a scale of run time is a number": (lambda: quantised_by_itself(is_multiplied=False), []),
    "transposed": (turned, []),
    "transposed, with scales along the sum": (
        lambda: turned(0),
        [("nn.conv2d_transpose", "its weights are no bytes with a scale for all or for each output channel")],
    ),
    "one row": (one_row, [("matmul", "the sums that correct its zero points cost more than bytes save")]),
}


@pytest.mark.parametrize("name", CASES)
def test_reasons(name: str) -> None:
    build, wanted = CASES[name]
    assert left(build()) == wanted


def test_a_model_of_floats_has_nothing_to_say() -> None:
    w = numpy_helper.from_array(np.ones((4, 4), F), "w")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [w])
    assert left(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)) == []


def test_names_are_the_model_s() -> None:
    """Of nodes; of what has none, its output's. They survive where a model of halves is written anew."""
    for half in (False, True):
        g = QdqGraph((7, 48), (7, 48))
        model = g.model(g.quantised(g.op("Add", g.operand(), "x1"), 0.1, 0))
        (node,) = (node for node in model.graph.node if node.op_type == "Add")
        node.name = "/encoder/layer.0/Add::1"
        if half:
            to_half(model)
        prepared = prepare(model)
        assert prepared.in_floats == (InFloats(node.name, "add", "its second operand is not quantised"),)
        assert prepared.arranged(prepared.graph).in_floats == prepared.in_floats


def to_half(model: onnx.ModelProto) -> None:
    """All of its floats."""
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    model.opset_import[0].version = 21
    model.graph.ClearField("value_info")
