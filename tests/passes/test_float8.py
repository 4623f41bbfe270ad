"""Products of float8e4m3fn: where a device has them, and in float32 where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from onnx import TensorProto

from subtune.core.forms import Forms
from subtune.core.numerics import FLOAT8
from subtune.frontends import load
from subtune.passes.exprs import array_of, dtype_of, op_name
from subtune.passes.float8 import float8_products
from subtune.passes.in_floats import in_floats
from subtune.pipeline import normalize, prepare
from tests.float8_models import E4M3, Float8Graph, convolution, dense
from tests.small_model import small_onnx

HOPPER = Forms(multiplies_float8=True)


def calls(mod: tvm.IRModule) -> list[Any]:
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, tvm.ir.Call)]


def test_a_product_and_what_follows() -> None:
    """The scale of the result divides the factor and the bias, before the Relu."""
    model = dense(6, 32, 24, floats=True)
    known = {init.name: init for init in model.graph.initializer}
    assert known
    found = calls(float8_products(load(model).mod, HOPPER))
    named = [op_name(value).removeprefix("relax.") for value in found]
    assert named == ["quantize", "matmul", "multiply", "add", "nn.relu", "quantize", "dequantize"]
    _, product, scaled, biased, _, rounded, _ = found
    assert [dtype_of(arg) for arg in product.args] == [FLOAT8, FLOAT8]
    assert dtype_of(product) == "float32"
    factor, bias, step = (array_of(value.args[1]) for value in (scaled, biased, rounded))
    weights = next(array for array in map(array_of, product.args) if array is not None)
    assert weights.dtype == E4M3
    given = calls(load(model).mod)
    scales, own = (array_of(value.args[1]) for value in given if op_name(value) in ("relax.dequantize", "relax.add")
                   and array_of(value.args[1]).size > 1)  # fmt: skip
    np.testing.assert_allclose(factor.reshape(-1), np.float32(0.02) * scales / np.float32(0.5), rtol=1e-6)
    np.testing.assert_allclose(bias, own / 0.5, rtol=1e-6)
    assert step == 1


def test_weights_stay_what_they_are() -> None:
    """Scales are folded into weights of floats, which have digits to spare."""
    for model in (dense(6, 32, 24), convolution(16, 32, 7)):
        found = [
            v
            for v in calls(normalize(load(model).mod, forms=HOPPER))
            if op_name(v) in ("relax.matmul", "relax.nn.conv2d")
        ]
        assert [dtype_of(arg) for value in found for arg in value.args] == [FLOAT8, FLOAT8]


def test_bytes_are_passed_on() -> None:
    stored = [
        arg.dtype
        for s in prepare(convolution(16, 32, 7), forms=HOPPER).subgraphs
        for arg in s.workload.args
        if arg.is_output
    ]
    assert stored == [FLOAT8, FLOAT8, "float32"]


def test_no_reason_is_given_for_them() -> None:
    assert in_floats(float8_products(load(dense(6, 32, 24, floats=True)).mod, HOPPER)) == ()


def test_only_both_operands_together() -> None:
    """A product of weights in 8 bits with floats is one of floats."""
    g = Float8Graph((6, 32))
    mod = float8_products(load(g.model(g.op("MatMul", "x", g.weight((32, 24), 1)), (6, 24))).mod, HOPPER)
    (product,) = (value for value in calls(mod) if op_name(value) == "relax.matmul")
    assert [dtype_of(arg) for arg in product.args] == ["float32", "float32"]


def test_inputs_of_that_type_are_multiplied_as_such() -> None:
    g = Float8Graph((6, 32))
    model = g.model(g.op("MatMul", g.floats("x", 0.02), g.weight((32, 24), 1)), (6, 24))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    (product,) = (v for v in calls(float8_products(load(model).mod, HOPPER)) if op_name(v) == "relax.matmul")
    assert [dtype_of(arg) for arg in product.args] == [FLOAT8, FLOAT8]


def test_scales_along_the_sum_are_no_factor() -> None:
    g = Float8Graph((6, 32))
    mod = float8_products(
        load(g.model(g.op("MatMul", g.rounded("x", 0.02), g.weight((32, 24), 0)), (6, 24))).mod, HOPPER
    )
    (product,) = (value for value in calls(mod) if op_name(value) == "relax.matmul")
    assert [dtype_of(arg) for arg in product.args] == ["float32", "float32"]


def test_without_units_there_is_nothing_of_8_bits() -> None:
    for model in (dense(6, 32, 24), convolution(16, 32, 7)):
        mod = float8_products(load(model).mod)
        types = {dtype_of(expr) for value in calls(mod) for expr in (value, *value.args)}
        assert FLOAT8 not in types
        assert {op_name(value) for value in calls(mod)} & {"relax.quantize", "relax.dequantize"} == set()


def test_other_models_are_left_alone() -> None:
    mod = load(small_onnx()).mod
    assert float8_products(mod, HOPPER) is mod
    assert float8_products(mod) is mod
