"""QuantizeLinear and DequantizeLinear of float8e4m3fn, against ml_dtypes: every number, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import subtune
from subtune.core.errors import ModelError
from subtune.frontends.onnx.ops.importer import import_onnx
from subtune.frontends.onnx.reference import OnnxRuntime, onnxruntime_reference
from tests.float8_models import E4M3, Float8Graph, convolution, dense

F = np.float32


def every_number() -> np.ndarray:
    """Those of 8 bits, what lies between two of them and next to it, and what lies beyond all."""
    bits = np.arange(256, dtype=np.uint8).view(E4M3).astype(F)
    finite = np.sort(bits[np.isfinite(bits)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, F(to)) for to in (-1e9, 1e9)]
    return np.concatenate([bits, ties, *near, [np.inf, -np.inf, np.nan, 463, 465, 1e9, -1e9]]).astype(F)


def test_every_number_is_rounded_as_ml_dtypes_does(tmp_path: Path) -> None:
    x = every_number()
    g = Float8Graph(x.shape)
    model = g.model(g.rounded("x", 1.0), x.shape)
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False, verify=False).run({"x": x}).values()
    np.testing.assert_array_equal(got, np.clip(x, -448, 448).astype(E4M3).astype(F))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_along_an_axis(axis: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = (20 * rng.standard_normal((6, 8))).astype(F)
    scales = (0.1 * (1 + rng.random(x.shape[axis]))).astype(F)
    g = Float8Graph(x.shape)
    parts = g.constant(scales), g.constant(np.zeros(scales.shape, E4M3))
    y = g.op("DequantizeLinear", g.op("QuantizeLinear", "x", *parts, axis=axis), *parts, axis=axis)
    (got,) = subtune.compile(g.model(y, x.shape), output=tmp_path / "a.subtune", tune=False).run({"x": x}).values()
    step = scales.reshape([-1 if a == axis % 2 else 1 for a in range(2)])
    np.testing.assert_array_equal(got, np.clip(x / step, -448, 448).astype(E4M3).astype(F) * step)


@pytest.mark.parametrize("model", [dense(6, 32, 24, floats=True), convolution(8, 12, 7)], ids=["dense", "convolution"])
def test_models_agree_with_onnx_runtime(model: onnx.ModelProto, tmp_path: Path) -> None:
    """ONNX Runtime's sums are in another order: next to a tie a number may be rounded the other way."""
    pytest.importorskip("onnxruntime")
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(dims).astype(F)
    reference = onnxruntime_reference(model)
    assert reference is not None
    (want,) = reference({"x": x}).values()
    (got,) = subtune.compile(model, output=tmp_path / "a.subtune", tune=False).run({"x": x}).values()
    assert want.min() == 0, "ONNX Runtime leaves the Relu out: see `frontends.onnx.reference`"
    assert np.mean(got != want) < 0.01
    np.testing.assert_allclose(got, want, rtol=0.13)


def of_one_node(op: str, weights: dict[str, Any], dtype: int = TensorProto.FLOAT, **attrs: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", *weights], ["y"], **attrs)
    inits = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    x, y = (helper.make_tensor_value_info(name, of, [4, 6]) for name, of in (("x", TensorProto.FLOAT), ("y", dtype)))
    graph = helper.make_graph([node], "g", [x], [y], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


ZERO = np.zeros((), E4M3)
REFUSED = {
    "zero point": ({"s": F(1), "z": np.ones((), E4M3)}, {}, "a zero point beside float8_e4m3fn that is not 0"),
    "blocks": ({"s": np.ones((4, 4), F)}, {"block_size": 2, "output_dtype": 17}, r"\[4, 4\] for blocks of 2"),
    "no scale": ({"s": F(0), "z": ZERO}, {}, "has a scale that is not positive"),
    "e5m2": ({"s": F(1), "z": np.ones((), ml_dtypes.float8_e5m2)}, {}, "a zero point beside float8_e5m2 that is not 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    weights, attrs, said = REFUSED[case]
    with pytest.raises(ModelError, match=said) as caught:
        import_onnx(of_one_node("QuantizeLinear", weights, TensorProto.FLOAT8E4M3FN, **attrs))
    assert "\n" not in str(caught.value)


def test_the_reference_is_moved_by_what_tensor_cores_cut_off() -> None:
    """By units in the last place next to no sum would be rounded another way."""
    pytest.importorskip("onnxruntime")
    model = dense(64, 256, 256, floats=True)
    x = {"x": np.random.default_rng(0).standard_normal((64, 256)).astype(F)}
    reference = OnnxRuntime(model)
    runs = (reference.start(1), reference.moved(1, 0), reference.moved(1, 1))
    still, *moved = (run for run in runs if run is not None)
    (right,) = still(x).values()
    assert len(moved) == 2
    for run in moved:
        (other,) = run(x).values()
        assert 1e-4 < np.mean(np.abs(other - right) > 0.01 * np.abs(right)) < 0.05
