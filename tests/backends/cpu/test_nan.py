"""NaN and infinities go through every operator as they do in ONNX Runtime, or in the formula of the specification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import subtune
from subtune.driver import compile_model

ort = pytest.importorskip("onnxruntime")

_SHAPE = (2, 3, 8, 21)
_SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], np.float32)
_F = np.float32

UNARY = (
    "Relu Sigmoid Tanh Exp Log Sqrt Abs Neg Floor Ceil Round Erf Softplus Softsign Elu Selu LeakyRelu HardSigmoid "
    "HardSwish Celu ThresholdedRelu Reciprocal Sin Cos Atan Sign Shrink"
).split()
NODES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    **{op: (op, {}, ()) for op in UNARY},
    "clip": ("Clip", {}, (_F(-1), _F(2))),
    "clip below": ("Clip", {}, (_F(-0.5), _F(3.4028235e38))),
    "truth": ("Cast", {"to": TensorProto.BOOL}, ()),
    "largest in order": ("TopK", {"axis": 3}, (np.array([3]),)),
    "least in order": ("TopK", {"axis": 1, "largest": 0}, (np.array([2]),)),
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

PLACES: dict[str, tuple[tuple[str, dict[str, Any], tuple[Any, ...]], Callable[[np.ndarray], np.ndarray]]] = {
    "largest": (("ArgMax", {"axis": 3, "keepdims": 0}, ()), lambda x: x.argmax(3)),
    "least": (("ArgMin", {"axis": 1, "keepdims": 0}, ()), lambda x: x.argmin(1)),
    "last of the largest": (
        ("ArgMax", {"axis": 3, "keepdims": 0, "select_last_index": 1}, ()),
        lambda x: x.shape[3] - 1 - x[..., ::-1].argmax(3),
    ),
    "mark": (("Hardmax", {"axis": 3}, ()), lambda x: np.arange(x.shape[3]) == x.argmax(3)[..., None]),
}
"""NaN is the most extreme, and the first of several counts, as in numpy; ONNX Runtime only finds one at the start."""


def _model(nodes: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]]) -> onnx.ModelProto:
    """One output for each of `nodes`, all of one input."""
    made, constants = [], []
    for i, (op, attributes, given) in enumerate(nodes.values()):
        constants += [numpy_helper.from_array(np.asarray(value), f"c{i}_{j}") for j, value in enumerate(given)]
        names = [f"c{i}_{j}" for j in range(len(given))]
        made.append(helper.make_node(op, ["x", *names], [f"y{i}", *([f"at{i}"] if op == "TopK" else [])], **attributes))
    inputs = [helper.make_tensor_value_info("x", 1, _SHAPE)]
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(len(nodes))]
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
    nodes = NODES | {name: node for name, (node, _) in PLACES.items()}
    return _compiled(_model(nodes), tmp_path_factory.mktemp("nan"))


@pytest.fixture(scope="module")
def theirs() -> Any:
    return ort.InferenceSession(_model(NODES).SerializeToString())


@pytest.mark.parametrize("name", NODES)
@pytest.mark.grid
def test_as_onnxruntime(name: str, ours: Any, theirs: Any) -> None:
    output = f"y{list(NODES).index(name)}"
    for x in _inputs():
        with np.errstate(all="ignore"):
            assert _agree(ours.run({"x": x})[output], theirs.run([output], {"x": x})[0])


@pytest.mark.parametrize("name", PLACES)
def test_places_as_numpy(name: str, ours: Any) -> None:
    output = f"y{len(NODES) + list(PLACES).index(name)}"
    for x in _inputs():
        assert np.array_equal(ours.run({"x": x})[output], PLACES[name][1](x))


def test_recurrent_networks_as_the_formula(tmp_path: Path) -> None:
    """ONNX Runtime's own LSTM and GRU return numbers where the formula has none: 5.0 for nothing but NaN."""
    rng = np.random.default_rng(0)
    weights = {"LSTM": (4, 8), "GRU": (3, 6)}
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape, _F), f"{op}{i}")
        for op, (gates, biases) in weights.items()
        for i, shape in enumerate([(1, gates * 8, 6), (1, gates * 8, 8), (1, biases * 8)])
    ]
    nodes = [helper.make_node(op, ["x", *(f"{op}{i}" for i in range(3))], [op], hidden_size=8) for op in weights]
    inputs = [helper.make_tensor_value_info("x", 1, (5, 3, 6))]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info(op, 1, None) for op in weights], constants
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(made)
    ours = _compiled(model, tmp_path)
    x = rng.standard_normal((5, 3, 6), _F)
    x[1, 1, 2], x[2, 2] = np.nan, 1e30  # the second sequence from its second step on; beyond what `exp` can hold
    with np.errstate(all="ignore"):
        right = dict(zip(weights, ReferenceEvaluator(model).run(None, {"x": x}), strict=True))
    for op, found in ours.run({"x": x}).items():
        assert _agree(found, right[op])
        assert np.isnan(found).any((0, 1, 3)).tolist() == [False, True, False]


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
    "no slope": (("LeakyRelu", {"alpha": 0.0}, ()), lambda x: np.maximum(x, 0)),
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
    if name in ("pool", "rows"):
        x[1] = -np.inf
        assert np.isneginf(extremes.run({"x": x})[output][1]).all()
    x = np.full(_SHAPE, np.nan, _F)
    found = extremes.run({"x": x})[output]
    inside = (..., slice(1, -1), slice(1, -1)) if name == "pool" else ...  # the border sees the padding, too
    assert np.isnan(found[inside]).all()
