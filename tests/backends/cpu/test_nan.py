"""NaN and infinities go through every operator as they do in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import subtune
from subtune.driver import compile_model

ort = pytest.importorskip("onnxruntime")

_SHAPE = (2, 3, 8, 21)
_SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float32)
_F = np.float32

UNARY = (
    "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg Floor Ceil Round Erf Softplus Softsign Elu Selu LeakyRelu HardSigmoid "
    "HardSwish Celu ThresholdedRelu Reciprocal Sin Cos Atan"
).split()
NODES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    **{op: (op, {}, ()) for op in UNARY},
    "clip": ("Clip", {}, (_F(-1), _F(2))),
    "clip below": ("Clip", {}, (_F(-0.5), _F(3.4028235e38))),
    "prelu": ("PRelu", {}, (np.full((3, 1, 1), 0.1, _F),)),
    "softmax": ("Softmax", {"axis": 3}, ()),
    "softmax across": ("Softmax", {"axis": 1}, ()),
    "log softmax": ("LogSoftmax", {"axis": 3}, ()),
    "average pool": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}, ()),
    "global average": ("GlobalAveragePool", {}, ()),
    "batch norm": ("BatchNormalization", {}, tuple(np.full(3, v, _F) for v in (1, 0, 0, 1))),
    "layer norm": ("LayerNormalization", {}, (np.ones(21, _F), np.zeros(21, _F))),
    "instance norm": ("InstanceNormalization", {}, (np.ones(3, _F), np.zeros(3, _F))),
    "product": ("MatMul", {}, (np.ones((21, 8), _F),)),
    "convolution": ("Conv", {"pads": [1] * 4}, (np.ones((4, 3, 3, 3), _F),)),
    **{f"{op} {axes}": (op, {"axes": axes}, ()) for op in ("ReduceMean", "ReduceL2") for axes in ([3], [1, 2])},
}
"""Operator, attributes, constants."""


def _model(nodes: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]]) -> onnx.ModelProto:
    """One output for each of `nodes`, all of one input."""
    made, constants = [], []
    for i, (op, attributes, given) in enumerate(nodes.values()):
        constants += [numpy_helper.from_array(np.asarray(value), f"c{i}_{j}") for j, value in enumerate(given)]
        names = [f"c{i}_{j}" for j in range(len(given))]
        made.append(helper.make_node(op, ["x", *names], [f"y{i}"], **attributes))
    inputs = [helper.make_tensor_value_info("x", 1, _SHAPE)]
    outputs = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(nodes))]
    graph = helper.make_graph(made, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _inputs() -> list[np.ndarray]:
    """Random ones with few and with many that are no numbers, and nothing but NaN."""
    rng = np.random.default_rng(0)
    found = [np.full(_SHAPE, np.nan, _F)]
    for share in (0.02, 0.3):
        x, picked = rng.standard_normal(_SHAPE, _F), rng.random(_SHAPE) < share
        x[picked] = rng.choice(_SPECIAL, int(picked.sum()))
        found.append(x)
    return found


def _agree(found: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.allclose(found, right, 1e-3, 1e-3, equal_nan=True))


def _compiled(model: onnx.ModelProto, path: Path, target: Any = "auto") -> Any:
    return subtune.load(compile_model(model, path / "m.subtune", target=target, tune=False, verify=False).path)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _compiled(_model(NODES), tmp_path_factory.mktemp("nan"))


@pytest.fixture(scope="module")
def theirs() -> Any:
    return ort.InferenceSession(_model(NODES).SerializeToString())


@pytest.mark.parametrize("name", NODES)
def test_as_onnxruntime(name: str, ours: Any, theirs: Any) -> None:
    output = f"y{list(NODES).index(name)}"
    for x in _inputs():
        with np.errstate(all="ignore"):
            assert _agree(ours.run({"x": x})[output], theirs.run([output], {"x": x})[0])


def _pooled(x: np.ndarray) -> np.ndarray:
    """3x3, stride 1, padded by 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).max((-1, -2))


EXTREMES: dict[str, tuple[tuple[str, dict[str, Any], tuple[Any, ...]], Callable[[np.ndarray], np.ndarray]]] = {
    "rows": (("ReduceMax", {"axes": [3]}, ()), lambda x: x.max(3, keepdims=True)),
    "columns": (("ReduceMax", {"axes": [1]}, ()), lambda x: x.max(1, keepdims=True)),
    "all": (("ReduceMax", {}, ()), lambda x: x.max(keepdims=True)),
    "least": (("ReduceMin", {"axes": [2, 3]}, ()), lambda x: x.min((2, 3), keepdims=True)),
    "pool": (("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}, ()), _pooled),
    "global": (("GlobalMaxPool", {}, ()), lambda x: x.max((2, 3), keepdims=True)),
}
"""With a NaN among numbers ONNX Runtime's maximum is NaN or not by where that lies, and so is ours."""


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    nodes = {name: node for name, (node, _) in EXTREMES.items()}
    return _compiled(_model(nodes), tmp_path_factory.mktemp("extremes"))


@pytest.mark.parametrize("name", EXTREMES)
def test_a_maximum_of_nothing_but_nan_is_nan(name: str, extremes: Any) -> None:
    right, output = EXTREMES[name][1], f"y{list(EXTREMES).index(name)}"
    x = np.random.default_rng(0).standard_normal(_SHAPE, _F)
    x[0, :, :, 3], x[1, 1] = np.inf, -np.inf
    if name in ("columns", "least"):
        assert _agree(extremes.run({"x": x})[output], right(x))
    x = np.full(_SHAPE, np.nan, _F)
    found = extremes.run({"x": x})[output]
    inside = (..., slice(1, -1), slice(1, -1)) if name == "pool" else ...  # the border sees the padding, too
    assert np.isnan(found[inside]).all()
