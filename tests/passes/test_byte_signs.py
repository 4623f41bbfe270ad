"""Activations get the sign that a processor wants; sums of bytes are rounded as by ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import subtune
from subtune.backends.cpu.backend import BACKEND, CPUBackend
from subtune.backends.cpu.device import CPU
from subtune.core.forms import Forms
from subtune.frontends import load
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.passes.byte_signs import byte_signs
from subtune.passes.byte_sums import byte_sums
from subtune.passes.integer_products import integer_products
from subtune.pipeline import prepare
from tests.qdq_graph import QdqGraph

RNG = np.random.default_rng(0)
UNSIGNED, SIGNED = Forms(byte_rows="uint8"), Forms(byte_rows="int8")


class Bytes:
    """A QDQ model of int8 activations, as ONNX Runtime's quantiser writes by default, or of uint8."""

    def __init__(self, of: Any = np.int8) -> None:
        self.of = of
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def constant(self, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.weights)}"))
        return str(self.weights[-1].name)

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [f"v{len(self.nodes)}"], **attrs))
        return f"v{len(self.nodes) - 1}"

    def pair(self, value: str, scale: float, zero: int) -> str:
        shift = 128 if self.of is np.uint8 else 0
        grid = self.constant(np.float32(scale)), self.constant(self.of(zero + shift))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", value, *grid), *grid)

    def conv(self, value: str, channels: tuple[int, int]) -> str:
        cin, cout = channels
        bits = RNG.integers(-127, 128, (cout, cin, 3, 3)).astype(np.int8)
        weight = self.op(
            "DequantizeLinear", self.constant(bits), self.constant(np.float32(0.01)), self.constant(np.int8(0))
        )
        return self.op("Conv", value, weight, pads=[1] * 4)

    def model(self, result: str, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
        values = (("x", TensorProto.FLOAT, [1, 8, 9, 10]), (result, dtype, None))
        given, made = (helper.make_tensor_value_info(*value) for value in values)
        graph = helper.make_graph(self.nodes, "g", [given], [made], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual(of: Any = np.int8) -> onnx.ModelProto:
    g = Bytes(of)
    x = g.pair("x", 0.02, -5)
    y = g.pair(g.conv(x, (8, 8)), 0.11, 3)
    return g.model(g.pair(g.conv(g.pair(g.op("Add", y, x), 0.1, 2), (8, 6)), 0.5, -1))


def products(model: onnx.ModelProto, forms: Forms) -> set[str]:
    mod = integer_products(byte_signs(byte_sums(load(model).mod), forms))
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return {str(c.args[0].ty.dtype) for c in calls if getattr(getattr(c, "op", None), "name", "") == "relax.nn.conv2d"}


FORMS = pytest.mark.parametrize("forms", [UNSIGNED, SIGNED, Forms()], ids=["unsigned", "signed", "as they are"])
TYPES = pytest.mark.parametrize("of", [np.uint8, np.int8])


@TYPES
@FORMS
def test_activations_are_as_the_processor_wants_them(forms: Forms, of: Any) -> None:
    assert products(residual(of), forms) == {forms.byte_rows or of.__name__}


@TYPES
@FORMS
def test_convolutions_store_bytes(forms: Forms, of: Any) -> None:
    stored = [
        [arg.dtype for arg in subgraph.workload.args if arg.is_output]
        for subgraph in prepare(residual(of), forms=forms).subgraphs
        if "conv2d" in subgraph.name
    ]
    assert stored == [[forms.byte_rows or of.__name__]] * 2


@TYPES
@FORMS
def test_integers_are_those_of_onnx_runtime(
    forms: Forms, of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    model = residual(of)
    mine = CPUBackend.forms(BACKEND, CPU("auto"))
    monkeypatch.setattr(CPUBackend, "forms", lambda *_: replace(mine, byte_rows=forms.byte_rows))
    x = (2.5 * np.random.default_rng(1).standard_normal((1, 8, 9, 10))).astype(np.float32)
    (want,) = onnxruntime_reference(model)({"x": x}).values()
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False).run({"x": x}).values()
    assert np.ptp(want) > 10
    np.testing.assert_array_equal(got, want)


@TYPES
@FORMS
def test_a_results_type_stays(forms: Forms, of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = CPUBackend.forms(BACKEND, CPU("auto"))
    monkeypatch.setattr(CPUBackend, "forms", lambda *_: replace(mine, byte_rows=forms.byte_rows))
    g, zero = Bytes(of), -5 if of is np.int8 else 123
    grid = g.constant(np.float32(0.02)), g.constant(of(zero))
    model = g.model(g.op("QuantizeLinear", "x", *grid), helper.np_dtype_to_tensor_dtype(np.dtype(of)))
    x = (2.5 * np.random.default_rng(1).standard_normal((1, 8, 9, 10))).astype(np.float32)
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False).run({"x": x}).values()
    assert got.dtype == of
    limits = np.iinfo(of)
    np.testing.assert_array_equal(got, np.clip(np.rint(x / np.float32(0.02)) + zero, limits.min, limits.max))


def every_pair(
    scales: tuple[float, float, float], zeros: tuple[int, int, int]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A sum of two tensors of bytes that hold every pair of them."""
    names, nodes, weights = ("a", "b", "y"), [], []
    for name, scale, zero in zip(names, scales, zeros, strict=True):
        weights += [
            numpy_helper.from_array(np.float32(scale), f"s{name}"),
            numpy_helper.from_array(np.uint8(zero), f"z{name}"),
        ]
    for name in names[:2]:
        nodes.append(helper.make_node("DequantizeLinear", [name, f"s{name}", f"z{name}"], [f"f{name}"]))
    nodes += [
        helper.make_node("Add", ["fa", "fb"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "sy", "zy"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.UINT8, [256, 256]) for name in names]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], weights)
    a, b = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8), indexing="ij")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}


@pytest.mark.parametrize(
    ("scales", "zeros"),
    [
        ((0.025891032, 0.008064729, 0.025824822), (128, 130, 132)),  # one pair in the middle between two bytes
        ((0.02, 0.03, 0.05), (0, 0, 0)),
        ((0.1, 0.1, 0.1), (7, 250, 31)),
    ],
)
def test_every_sum_of_two_bytes_is_onnx_runtimes(scales: Any, zeros: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, given = every_pair(scales, zeros)
    (want,) = onnxruntime_reference(model)(given).values()
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False).run(given).values()
    np.testing.assert_array_equal(got, want)


def test_constants_that_the_model_quantises_turn_at_once() -> None:
    """A scalar of int8 in a product, as QOperator models have beside a GELU; nothing of it is left to a kernel."""
    g = QdqGraph((2, 8), dtype="int8", zero=-3)
    half = g.quantised(g.constant(np.float32(0.5)), 0.004, -10)
    grids = ((0.02, -3), (0.004, -10), (0.01, 4))
    scales = [[g.constant(np.float32(step)), g.constant(np.int8(zero))] for step, zero in grids]
    result = g.op("QLinearMul", g.inputs[0], *scales[0], half, *scales[1], *scales[2], domain="com.microsoft")
    prepared = prepare(g.model(result), forms=UNSIGNED)
    assert len(prepared.subgraphs) == 1
