"""Single operators against ONNX Runtime: the attributes and opsets that real models use."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.integrations.onnx_backend import SubtuneBackend

RNG = np.random.default_rng(7)


def floats(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def node_model(
    op: str,
    inputs: list[Any],
    opset: int,
    outputs: int = 1,
    constants: dict[int, Any] | None = None,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node; `constants` are inputs held as initialisers, None an omitted input."""
    names = [("" if x is None else f"x{i}") for i, x in enumerate(inputs)]
    for i in constants or {}:
        names += [f"x{j}" for j in range(len(names), i + 1)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attrs)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in (constants or {})}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    held = [numpy_helper.from_array(np.asarray(v), f"x{i}") for i, v in (constants or {}).items()]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], op, infos, results, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model), feeds


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    got = SubtuneBackend.prepare(model).run(feeds)
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        assert g.dtype == e.dtype
        np.testing.assert_allclose(g, e, rtol=rtol, atol=atol)


CASES: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "conv same_upper stride 2": (
        "Conv",
        [floats(1, 3, 9, 8), floats(4, 3, 3, 3)],
        11,
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    "conv same_lower even kernel": (
        "Conv",
        [floats(1, 3, 7, 7), floats(4, 3, 2, 4)],
        11,
        {"auto_pad": "SAME_LOWER"},
    ),
    "conv asymmetric pads, groups, bias": (
        "Conv",
        [floats(2, 4, 7, 6), floats(6, 2, 3, 2), floats(6)],
        11,
        {"pads": [0, 1, 2, 0], "group": 2},
    ),
    "conv dilated 1d": ("Conv", [floats(1, 3, 16), floats(5, 3, 3)], 7, {"dilations": [3], "pads": [2, 1]}),
    "conv 3d": ("Conv", [floats(1, 2, 5, 6, 4), floats(3, 2, 2, 3, 2)], 11, {"strides": [2, 1, 1]}),
    "conv depthwise": (
        "Conv",
        [floats(1, 6, 8, 8), floats(6, 1, 3, 3), floats(6)],
        11,
        {"group": 6, "pads": [1, 1, 1, 1]},
    ),
    "conv_transpose pads": (
        "ConvTranspose",
        [floats(1, 3, 5, 4), floats(3, 2, 3, 3), floats(2)],
        11,
        {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    "conv_transpose output_padding": (
        "ConvTranspose",
        [floats(1, 4, 4, 4), floats(4, 3, 3, 3)],
        11,
        {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 1, 1, 1]},
    ),
    "conv_transpose 1d output_padding": (
        "ConvTranspose",
        [floats(2, 4, 5), floats(4, 3, 3), floats(3)],
        11,
        {"strides": [2], "output_padding": [1], "pads": [1, 1]},
    ),
    "conv_transpose 3d groups": (
        "ConvTranspose",
        [floats(1, 4, 3, 2, 3), floats(4, 3, 2, 3, 2)],
        11,
        {"group": 2, "strides": [2, 1, 2], "pads": [0, 1, 0, 0, 1, 0]},
    ),
    "conv_transpose groups dilation": (
        "ConvTranspose",
        [floats(2, 4, 4, 5), floats(4, 3, 2, 3)],
        11,
        {"group": 2, "dilations": [2, 1], "strides": [1, 2]},
    ),
    "conv_transpose same": (
        "ConvTranspose",
        [floats(1, 2, 4, 4), floats(2, 2, 3, 3)],
        11,
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    "conv_transpose 1d": (
        "ConvTranspose",
        [floats(1, 3, 6), floats(3, 2, 4)],
        11,
        {"strides": [2], "pads": [1, 1]},
    ),
    "max_pool ceil": (
        "MaxPool",
        [floats(1, 2, 8, 9)],
        12,
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ),
    "max_pool same_lower": (
        "MaxPool",
        [floats(1, 2, 7, 7)],
        12,
        {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    "max_pool dilated": (
        "MaxPool",
        [floats(1, 2, 9, 9)],
        12,
        {"kernel_shape": [2, 3], "dilations": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "average_pool pads excluded": (
        "AveragePool",
        [floats(1, 2, 7, 8)],
        11,
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "average_pool pads included": (
        "AveragePool",
        [floats(1, 2, 7, 8)],
        11,
        {"kernel_shape": [3, 2], "pads": [1, 0, 0, 1], "count_include_pad": 1},
    ),
    "average_pool ceil, pads included": (
        "AveragePool",
        [floats(1, 2, 8, 8)],
        19,
        {
            "kernel_shape": [3, 3],
            "strides": [2, 2],
            "ceil_mode": 1,
            "count_include_pad": 1,
            "pads": [0, 0, 0, 0],
        },
    ),
    "average_pool same_upper": (
        "AveragePool",
        [floats(1, 2, 7, 7)],
        7,
        {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    "lp_pool": ("LpPool", [floats(1, 2, 7, 7)], 11, {"kernel_shape": [3, 3], "p": 3, "strides": [2, 2]}),
    "clip attributes": ("Clip", [floats(3, 4)], 6, {"min": -0.5, "max": 0.25}),
    "clip inputs": ("Clip", [floats(3, 4), np.float32(-0.5), np.float32(0.25)], 13, {}),
    "clip only max": ("Clip", [floats(3, 4), None, np.float32(0.25)], 13, {}),
    "softmax 11 flattens": ("Softmax", [floats(2, 3, 4)], 11, {"axis": 1}),
    "softmax 13 axis": ("Softmax", [floats(2, 3, 4)], 13, {"axis": 1}),
    "log_softmax 11": ("LogSoftmax", [floats(2, 3, 4)], 11, {}),
    "gemm": (
        "Gemm",
        [floats(4, 3), floats(5, 4), floats(5)],
        13,
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    "gemm column bias": ("Gemm", [floats(3, 4), floats(4, 5), floats(3, 1)], 9, {}),
    "batch_norm 9": (
        "BatchNormalization",
        [floats(2, 3, 4, 4), floats(3), floats(3), floats(3), np.abs(floats(3))],
        9,
        {"epsilon": 1e-3},
    ),
    "reduce_mean 11 attribute": ("ReduceMean", [floats(2, 3, 4)], 11, {"axes": [-1, 0], "keepdims": 0}),
    "reduce_sum 11": ("ReduceSum", [floats(2, 3, 4)], 11, {"axes": [1]}),
    "reduce_l2 all": ("ReduceL2", [floats(2, 3, 4)], 13, {}),
    "reduce_log_sum_exp": ("ReduceLogSumExp", [floats(2, 3, 4) * 80], 13, {"axes": [2]}),
    "reduce_max int": ("ReduceMax", [RNG.integers(-99, 99, (3, 5)).astype(np.int32)], 13, {"axes": [0]}),
    "squeeze 11": ("Squeeze", [floats(1, 3, 1)], 11, {"axes": [0]}),
    "unsqueeze 11": ("Unsqueeze", [floats(3, 4)], 11, {"axes": [0, -1]}),
    "slice 9": ("Slice", [floats(5, 6)], 9, {"starts": [1, -4], "ends": [100, -1], "axes": [0, 1]}),
    "pad 2": ("Pad", [floats(2, 3)], 10, {"pads": [1, 0, 0, 2], "value": 1.5}),
    "pad reflect 10": ("Pad", [floats(4, 5)], 10, {"mode": "reflect", "pads": [1, 2, 3, 4]}),
    "split 11": ("Split", [floats(6, 4)], 11, {"axis": 0, "outputs": 3, "split": [1, 2, 3]}),
    "upsample 9 nearest": (
        "Resize",
        [floats(1, 2, 3, 4), np.array([1, 1, 2, 3], np.float32)],
        10,
        {"mode": "nearest"},
    ),
    "dropout 7": ("Dropout", [floats(3, 4)], 7, {"ratio": 0.3}),
    "div int32 towards zero": (
        "Div",
        [np.array([-7, 7, -7, 7, 6], np.int32), np.array([2, -2, -2, 2, 3], np.int32)],
        14,
        {},
    ),
    "mod int": (
        "Mod",
        [np.array([-7, 7, -7, 7, 6], np.int64), np.array([3, -3, -3, 3, 3], np.int64)],
        13,
        {},
    ),
    "mod fmod": ("Mod", [floats(20) * 9, floats(20)], 13, {"fmod": 1}),
    "pow int exponent": ("Pow", [floats(8), np.array([0, 1, 2, 3, 4, 5, 6, 7], np.int64)], 15, {}),
    "pow of int64": ("Pow", [np.array([3, -2, 0, 5], np.int64), np.array([30, 3, 0, 20], np.int64)], 15, {}),
    "cast float to uint8": (
        "Cast",
        [np.array([0.0, 1.9, 254.7, 3.5], np.float32)],
        13,
        {"to": TensorProto.UINT8},
    ),
    "cast float to int64": (
        "Cast",
        [np.array([-3.7, 1e12, 2.5, -0.2], np.float32)],
        13,
        {"to": TensorProto.INT64},
    ),
    "cast int to bool": ("Cast", [np.array([0, -3, 7], np.int32)], 13, {"to": TensorProto.BOOL}),
    "arg_max last of equals": (
        "ArgMax",
        [np.array([[1, 3, 3], [2, 2, 1]], np.float32)],
        13,
        {"axis": 1, "select_last_index": 1},
    ),
    "arg_min": ("ArgMin", [floats(3, 4, 5)], 11, {"axis": -2, "keepdims": 0}),
    "gather negative": ("Gather", [floats(4, 5), np.array([[-1, 2], [0, -4]], np.int64)], 13, {"axis": 0}),
    "gather_elements": (
        "GatherElements",
        [floats(3, 4), np.array([[0, -1], [2, 1]], np.int64)],
        13,
        {"axis": 1},
    ),
    "gather_nd batch": (
        "GatherND",
        [floats(2, 3, 4), np.array([[1], [-1]], np.int64)],
        13,
        {"batch_dims": 1},
    ),
    "scatter_nd": ("ScatterND", [floats(4, 3), np.array([[1], [-1]], np.int64), floats(2, 3)], 13, {}),
    "scatter_elements add": (
        "ScatterElements",
        [floats(4, 3), np.array([[1, -1, 0]], np.int64), floats(1, 3)],
        16,
        {"reduction": "add", "axis": 0},
    ),
    "einsum": ("Einsum", [floats(2, 3, 4), floats(2, 4, 5)], 12, {"equation": "bij,bjk->bik"}),
    "layer_norm three outputs": (
        "LayerNormalization",
        [floats(2, 3, 8), floats(3, 8), floats(3, 8)],
        17,
        {"axis": 1, "outputs": 3},
    ),
    "instance_norm": ("InstanceNormalization", [floats(2, 3, 5, 5), floats(3), floats(3)], 6, {}),
    "lrn": ("LRN", [floats(1, 7, 3, 3)], 13, {"size": 5, "alpha": 0.02, "beta": 0.6, "bias": 2.0}),
    "depth_to_space crd": ("DepthToSpace", [floats(1, 8, 2, 3)], 13, {"blocksize": 2, "mode": "CRD"}),
    "prelu channel": ("PRelu", [floats(1, 3, 4, 4), floats(3, 1, 1)], 9, {}),
    "elu large": ("Elu", [np.array([-90.0, -1.0, 0.0, 5.0, 200.0], np.float32)], 6, {"alpha": 0.7}),
    "softplus large": ("Softplus", [np.array([-90.0, -1.0, 0.0, 5.0, 200.0], np.float32)], 1, {}),
    "sinh": ("Sinh", [np.array([0, 1e-6, -1e-3, 0.29, -0.31, 5, -20, 88.9, -89.2], np.float32)], 9, {}),
    "cosh": ("Cosh", [np.array([0, 1e-6, -1e-3, 0.29, -0.31, 5, -20, 88.9, -89.2], np.float32)], 9, {}),
    "round half even": ("Round", [np.array([-2.5, -1.5, 0.5, 1.5, 2.5, 2.6], np.float32)], 11, {}),
    "quantize_linear half even": (
        "QuantizeLinear",
        [np.array([0.5, 1.5, 2.5, -9e9, 9e9, 255.0], np.float32), np.float32(1.0), np.uint8(3)],
        13,
        {},
    ),
    "quantize_linear per channel": (
        "QuantizeLinear",
        [floats(2, 3, 4) * 9, np.array([0.1, 0.2, 0.3], np.float32), np.array([1, -2, 3], np.int8)],
        13,
        {"axis": 1},
    ),
    "dequantize_linear": (
        "DequantizeLinear",
        [RNG.integers(-128, 127, (2, 3)).astype(np.int8), np.float32(0.1), np.int8(-4)],
        13,
        {},
    ),
    "matmul_integer": (
        "MatMulInteger",
        [
            RNG.integers(0, 127, (3, 70)).astype(np.uint8),  # ONNX Runtime saturates sums of larger ones on AVX2
            RNG.integers(-128, 127, (70, 4)).astype(np.int8),
            np.uint8(12),
            np.int8(-3),
        ],
        10,
        {},
    ),
    "trilu": ("Trilu", [floats(3, 4)], 14, {"upper": 0}),
    "grid_sample": (
        "GridSample",
        [floats(1, 2, 5, 6), np.tanh(floats(1, 4, 3, 2)) * 1.3],
        16,
        {"mode": "bilinear", "padding_mode": "reflection", "align_corners": 1},
    ),
    "grid_sample border": (
        "GridSample",
        [floats(1, 2, 5, 6), np.tanh(floats(1, 4, 3, 2)) * 1.3],
        16,
        {"mode": "bilinear", "padding_mode": "border"},
    ),
    "reverse_sequence": (
        "ReverseSequence",
        [floats(4, 3), np.array([1, 4, 2], np.int64)],
        10,
        {"time_axis": 0, "batch_axis": 1},
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.grid
def test_operator_agrees_with_onnx_runtime(case: str) -> None:
    op, inputs, opset, attrs = CASES[case]
    attrs = dict(attrs)
    outputs = attrs.pop("outputs", 1)
    check(*node_model(op, [None if x is None else np.asarray(x) for x in inputs], opset, outputs, **attrs))


WRITTEN_BY_EXPORTERS: dict[str, tuple[str, list[Any], int, dict[str, Any]]] = {
    "a square of a tensor of lower rank": ("Pow", [floats(3), np.float32([[2]])], 15, {}),
    "integers to a float": ("Pow", [np.int64([3, -2, 7]), np.float32([2.0, 3.0, 0.5])], 15, {}),
    "inverse DFT": ("DFT", [floats(2, 6, 2)], 17, {"axis": 1, "inverse": 1}),
    "inverse DFT of reals": ("DFT", [floats(2, 7, 1)], 17, {"axis": 1, "inverse": 1}),
    "weights dequantised by blocks": (
        "DequantizeLinear",
        [RNG.integers(-128, 127, (4, 6), np.int8), abs(floats(4, 2)), RNG.integers(-9, 9, (4, 2), np.int8)],
        21,
        {"block_size": 3, "axis": 1},
    ),
}


@pytest.mark.parametrize("case", WRITTEN_BY_EXPORTERS, ids=str)
def test_what_exporters_write_agrees_with_onnx_runtime(case: str) -> None:
    op, inputs, opset, attrs = WRITTEN_BY_EXPORTERS[case]
    held = {i: x for i, x in enumerate(inputs) if op == "Pow" and i == 1}  # as a constant
    check(*node_model(op, inputs[:1] if held else inputs, opset, 1, held, **attrs))


@pytest.mark.parametrize(
    ("names", "attrs"),
    [
        (["HardSigmoid", "Tanh", "Tanh"], {}),  # Keras
        (["HardSigmoid", "Softsign", "Elu"], {"activation_alpha": [0.3, 0.7], "activation_beta": [0.4]}),
        (["Sigmoid", "LeakyRelu", "Softplus"], {"activation_alpha": [0.2]}),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_activations_of_a_recurrent_cell(names: list[str], attrs: dict[str, Any], direction: str) -> None:
    dirs = 2 if direction == "bidirectional" else 1
    attrs = {key: value * dirs for key, value in attrs.items()}
    inputs = [floats(3, 2, 4), floats(dirs, 20, 4), floats(dirs, 20, 5)]
    check(*node_model("LSTM", inputs, 14, 3, hidden_size=5, direction=direction, activations=names * dirs, **attrs))


SHAPED: dict[str, tuple[str, list[Any], int, dict[int, Any], dict[str, Any]]] = {
    "resize linear half_pixel": (
        "Resize",
        [floats(1, 2, 4, 5), None],
        13,
        {2: np.array([1, 1, 1.7, 2.3], np.float32)},
        {"mode": "linear"},
    ),
    "resize cubic align_corners": (
        "Resize",
        [floats(1, 1, 4, 5), None, None],
        13,
        {3: np.array([1, 1, 7, 9], np.int64)},
        {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    ),
    "resize nearest ceil asymmetric": (
        "Resize",
        [floats(1, 1, 4, 6), None, None],
        13,
        {3: np.array([1, 1, 7, 4], np.int64)},
        {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
    ),
    "resize down pytorch_half_pixel": (
        "Resize",
        [floats(1, 1, 8, 8), None, None],
        13,
        {3: np.array([1, 1, 3, 1], np.int64)},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ),
    "slice backwards": ("Slice", [floats(5, 6)], 13, {1: [4, -1], 2: [-9, 0], 3: [0, 1], 4: [-2, -1]}, {}),
    "pad edge with axes": (
        "Pad",
        [floats(3, 4)],
        18,
        {1: np.array([1, 2], np.int64), 2: np.float32(0), 3: np.array([-1], np.int64)},
        {"mode": "edge"},
    ),
    "pad negative": ("Pad", [floats(4, 5)], 13, {1: np.array([-1, 2, 0, -2], np.int64)}, {}),
    "reduce_sum 13 axes input": (
        "ReduceSum",
        [floats(2, 3, 4)],
        13,
        {1: np.array([1], np.int64)},
        {"keepdims": 0},
    ),
    "reduce noop": (
        "ReduceSum",
        [floats(2, 3)],
        13,
        {1: np.array([], np.int64)},
        {"noop_with_empty_axes": 1},
    ),
    "top_k smallest": (
        "TopK",
        [floats(3, 7)],
        11,
        {1: np.array([3], np.int64)},
        {"axis": 1, "largest": 0, "outputs": 2},
    ),
    "cum_sum reverse exclusive": (
        "CumSum",
        [floats(3, 5)],
        14,
        {1: np.array(1, np.int64)},
        {"reverse": 1, "exclusive": 1},
    ),
    "one_hot": (
        "OneHot",
        [np.array([[0, -1], [2, 3]], np.int64)],
        11,
        {1: np.array(4, np.int64), 2: np.array([0, 5], np.float32)},
        {"axis": 1},
    ),
    "reshape copies and infers": ("Reshape", [floats(2, 3, 4)], 13, {1: np.array([0, -1], np.int64)}, {}),
    "expand": ("Expand", [floats(3, 1)], 13, {1: np.array([2, 1, 4], np.int64)}, {}),
    "tile": ("Tile", [floats(2, 3)], 13, {1: np.array([2, 2], np.int64)}, {}),
}


@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_operator_with_constant_inputs_agrees_with_onnx_runtime(case: str) -> None:
    op, inputs, opset, constants, attrs = SHAPED[case]
    attrs = dict(attrs)
    outputs = attrs.pop("outputs", 1)
    held = {i: np.asarray(v, np.int64) if isinstance(v, list) else v for i, v in constants.items()}
    check(*node_model(op, inputs, opset, outputs, held, **attrs))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.grid
def test_recurrent_agrees_with_onnx_runtime(op: str, direction: str) -> None:
    gates, dirs = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = 5, 3, 4, 6
    inputs = [
        floats(steps, batch, width),
        floats(dirs, gates * hidden, width),
        floats(dirs, gates * hidden, hidden),
        floats(dirs, 2 * gates * hidden),
        np.array([5, 2, 4], np.int32),
        floats(dirs, batch, hidden),
    ]
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = 1
    check(*node_model(op, inputs, 14, 3 if op == "LSTM" else 2, **attrs))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Gelu", [floats(3, 8)], {}),
        ("BiasGelu", [floats(3, 8), floats(8)], {}),
        ("FastGelu", [floats(3, 8), floats(8)], {}),
        ("QuickGelu", [floats(3, 8)], {"alpha": 1.702}),
        ("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], {"alpha": 0.3, "transA": 1, "transB": 1}),
        ("FusedConv", [floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(3)], {"activation": "Relu"}),
        (
            "FusedConv",
            [floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(3), floats(1, 3, 3, 3)],
            {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        ),
        (
            "FusedGemm",
            [floats(2, 3), floats(4, 3), floats(4)],
            {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.3},
        ),
        ("SkipLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)], {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_contributed_operator_agrees_with_onnx_runtime(
    op: str, inputs: list[np.ndarray], attrs: dict[str, Any]
) -> None:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attrs)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in zip(names, inputs, strict=True)]
    result = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], op, infos, [result])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    check(model, dict(zip(names, inputs, strict=True)), atol=1e-4 if op == "FastGelu" else 1e-5)
