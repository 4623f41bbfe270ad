"""Quantised models: what is in them, that they are what the float ones were, and what they lose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from subtune import models
from subtune.core.errors import InputError, ModelError
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.quantization.settings import CALIBRATIONS, FORMATS, Settings
from subtune.quantization.static import quantised, quantised_and_measured

pytest.importorskip("onnxruntime")


def feeds(model: onnx.ModelProto, count: int = 4) -> list[dict[str, np.ndarray]]:
    return [models.example_inputs(model, seed) for seed in range(count)]


def convolutions(*lines: str, opset: int = 13, channels: int = 8, **more: np.ndarray) -> onnx.ModelProto:
    """x and y are images; w, v are weights, b is a bias."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]>'
        f"g (float[1,{channels},6,6] x) => (float y) {{ {' '.join(lines)} }}"
    )
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((channels, channels, 3, 3)),
        "v": rng.standard_normal((channels, channels, 1, 1)),
        "b": rng.standard_normal(channels),
    }
    for name, array in {**weights, **more}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


PLAIN = ("a = Conv <pads = [1, 1, 1, 1]> (x, w, b)", "r = Relu(a)", "y = Conv(r, v)")


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_weights_are_signed_without_zero_points_and_have_scales_by_channel() -> None:
    model = convolutions(*PLAIN)
    made = quantised(model, feeds(model))
    assert made.products == (2, 2)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.model.graph.initializer}
    for node in made.model.graph.node:
        scale, zero = (held[name] for name in node.input[1:]) if "Linear" in node.op_type else (None, None)
        if node.op_type == "QuantizeLinear":
            assert zero.dtype == np.uint8
            assert scale.shape == ()
        elif node.op_type == "DequantizeLinear" and (bits := held.get(node.input[0])) is not None:
            assert bits.dtype in (np.int8, np.int32)
            assert scale.shape == (8,)
            assert not zero.any()
    assert made.model.opset_import[0].version == 13


def test_nothing_but_the_inside_changes() -> None:
    model = convolutions(*PLAIN)
    model.producer_name = "somebody"
    model.metadata_props.add(key="labels", value="cat, dog")
    before = model.SerializeToString()
    made = quantised(model, feeds(model)).model
    assert model.SerializeToString() == before
    assert list(made.metadata_props) == list(model.metadata_props)
    assert (made.producer_name, made.graph.name) == ("somebody", "g")
    assert [value.name for value in (*made.graph.input, *made.graph.output)] == ["x", "y"]
    assert [entry.domain for entry in made.opset_import] == [""]


def test_the_same_twice() -> None:
    model = models.reduced("mobilenet_v2", image=32)
    first, second = (quantised(model, feeds(model)).model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("opset", [8, 11, 17])
def test_older_opsets_and_norms(opset: int) -> None:
    """A BatchNormalization is in the weights; a Sum of two is an Add of bytes; the initialisers may be inputs."""
    one = np.ones(8, np.float32)
    lines = ("a = Conv(x, v)", "n = BatchNormalization(a, s, b, m, u)", "t = Sum(n, x)", "y = Conv(t, v)")
    model = convolutions(*lines, opset=opset, s=one + 1, m=one / 2, u=one * 3)
    model.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, 1, t.dims) for t in model.graph.initializer)
    made, losses = quantised_and_measured(model, feeds(model))
    found = operators(made.model)
    assert found.count("Conv") == 2
    assert "Add" in found
    assert not {"Sum", "BatchNormalization"} & set(found)
    assert losses.outputs["y"] > 25
    assert made.model.opset_import[0].version == max(opset, 13)


def test_formats() -> None:
    model = convolutions(*PLAIN)
    made, losses = quantised_and_measured(model, feeds(model), Settings(format="qoperator"))
    assert operators(made.model).count("QLinearConv") == 2
    assert losses.layers == quantised_and_measured(model, feeds(model))[1].layers


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_calibrations(calibration: str) -> None:
    """An outlier, one of 276 thousand, makes the range of minmax alone."""
    model = convolutions(*PLAIN, channels=32)
    samples = feeds(model, 240)
    samples[7]["x"].flat[5] = 30
    made = quantised(model, samples, Settings(calibration)).model
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert (held["x_scale"] > 0.1) == (calibration == "minmax")
    assert held["r_zero_point"] == 0, "nothing below zero has steps where nothing is below zero"


def test_losses_are_what_numpy_says() -> None:
    """Of an input in steps of 1/4 between -31.75 and 32, nothing is lost; of its weights, what rounding loses."""
    model = convolutions("y = Conv(x, v)")
    rng = np.random.default_rng(1)
    samples = [{"x": (rng.integers(-127, 129, (1, 8, 6, 6)) / 4).astype(np.float32)} for _ in range(3)]
    samples[0]["x"].flat[:2] = [-31.75, 32]
    made, losses = quantised_and_measured(model, samples)
    (layer,) = losses.layers
    assert (layer.name, layer.op, layer.tensor) == ("y", "Conv", "y")
    w = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "v"))
    step = np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127
    noise = w - np.rint(w / step) * step
    assert layer.weights_db == pytest.approx(10 * math.log10((w**2).sum() / (noise**2).sum()), abs=0.05)
    run, exact = onnxruntime_reference(made.model), onnxruntime_reference(model)
    assert run
    assert exact
    x, y = (np.concatenate([one(dict(feed))["y"] for feed in samples]).astype(float) for one in (exact, run))
    assert losses.outputs["y"] == pytest.approx(10 * math.log10((x**2).sum() / ((x - y) ** 2).sum()), abs=0.2)
    assert layer.total_db == pytest.approx(losses.outputs["y"])
    assert losses.samples == 3


def test_the_layer_that_loses_most_comes_first() -> None:
    """One value of each row of `v` is 300 times as large as the others: bytes have no steps for those."""
    spread = np.ones((8, 8, 1, 1))
    spread[:, 0] = 300
    model = convolutions(*PLAIN, "", v2=spread)
    model.graph.node[-1].input[1] = "v2"
    losses = quantised_and_measured(model, feeds(model))[1]
    tight = [layer.own_db for layer in losses.layers]
    assert tight == sorted(tight)
    assert {layer.name for layer in losses.layers} == {"x", "a", "y"}
    first = next(layer for layer in losses.layers if layer.name == "a")
    assert first.tensor == "r", "the activation is the range of the convolution"
    assert first.result_db > 30, "what the activation cuts off is no loss"


def test_excluded_nodes_stay_in_float() -> None:
    model = convolutions(*PLAIN)
    for name in ("a", "y"):
        made = quantised(model, feeds(model), Settings(exclude=(name,)))
        assert made.products == (1, 2)
        read = {node.output[0]: node.op_type for node in made.model.graph.node}
        weights = {node.output[0]: read.get(node.input[1]) for node in made.model.graph.node if node.op_type == "Conv"}
        assert sorted(map(str, weights.values())) == ["DequantizeLinear", "None"]


def test_channels_without_weights_and_values_without_range() -> None:
    """Their scales are positive: such models are compiled."""
    weights = np.zeros((8, 8, 3, 3))
    weights[1:] = np.random.default_rng(0).standard_normal((7, 8, 3, 3))
    model = convolutions(*PLAIN, w0=weights, b0=np.full(8, -1e4))
    model.graph.node[0].input[1:] = ["w0", "b0"]
    made = quantised(model, feeds(model)).model
    scales = [numpy_helper.to_array(t) for t in made.graph.initializer if t.name.endswith("_scale")]
    assert len(scales) > 4
    assert all((scale > 0).all() for scale in scales)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "nothing to quantise": (convolutions("y = Relu(x)"), "no convolution or product with constant weights"),
    "halves": (half(convolutions(*PLAIN)), "computes in float16 .'x'.: quantise its float32 original"),
    "quantised": (
        convolutions("q = QuantizeLinear(x, b)", "y = DequantizeLinear(q, b)"),
        "quantised already .Quantize",
    ),
    "QOperator": (convolutions("y = com.microsoft.QLinearSigmoid(x, b, b, b, b)"), "quantised already .QLinearSigmoid"),
    "no data": (convolutions(*PLAIN), "at least one sample"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_are_refused(case: str) -> None:
    model, said = REFUSED[case]
    samples = [] if case == "no data" else [{"x": np.zeros((1, 8, 6, 6), np.float32)}]
    with pytest.raises((ModelError, InputError), match=said) as caught:
        quantised(model, samples)
    assert "\n" not in str(caught.value)


def test_settings_that_are_none() -> None:
    with pytest.raises(ModelError, match="no calibration 'mean': use minmax, entropy or percentile"):
        Settings("mean")
    with pytest.raises(ModelError, match=f"no format 'x': use {FORMATS[0]} or {FORMATS[1]}"):
        Settings(format="x")


def test_data_on_which_the_model_does_not_run(capfd: Any) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (int64[1,4] ids) => (float y)'
        "{ e = Gather(t, ids)\n y = MatMul(e, w) }"
    )
    for name, shape in (("t", (5, 8)), ("w", (8, 8))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    good, bad = ({"ids": np.full((1, 4), value)} for value in (4, 7))
    with pytest.raises(InputError, match=r"cannot run the model on what it is calibrated with: .*out of"):
        quantised(model, [good, bad])
    assert capfd.readouterr() == ("", ""), "the runtime says nothing by itself"
