"""Every zoo model at reduced size: valid, deterministic, alive, with the operators it stands for."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from subtune import models
from subtune.models.catalog import DTYPES
from tests.whole import IS_WHOLE

# Nodes by operator that make each model worth having in the zoo: at least so many of each.
EXPECTED_OPS = {
    "bert": {
        "Gather": 4,
        "Erf": 2,
        "Pow": 5,
        "Sqrt": 5,
        "ReduceMean": 10,
        "Unsqueeze": 2,
        "Gemm": 1,
        "Softmax": 2,
    },
    "convnext_tiny": {"Conv": 22, "LayerNormalization": 23, "Gelu": 18, "MatMul": 36, "Transpose": 46, "Gemm": 1},
    "efficientnet_lite0": {"Transpose": 1, "Clip": 30, "Add": 10, "MatMul": 1, "Squeeze": 1, "Softmax": 1},
    "gpt2": {"LayerNormalization": 5, "Split": 2, "Where": 2, "Slice": 4, "Tanh": 2, "Pow": 2, "Gemm": 8},
    "lstm": {"LSTM": 2, "Squeeze": 2, "Gather": 1, "Gemm": 1},
    "mlp": {"Flatten": 1, "Gemm": 3, "Relu": 2},
    "mobilenet_v2": {"Clip": 35, "Conv": 52, "Add": 10, "Shape": 1, "Concat": 1, "Reshape": 1, "Gemm": 1},
    "resnet18": {"Conv": 20, "Add": 8, "MaxPool": 1, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1},
    "resnet50": {"Conv": 53, "BatchNormalization": 53, "Sum": 16, "AveragePool": 1, "Reshape": 1, "Gemm": 1},
    "squeezenet": {"Conv": 26, "Concat": 8, "Dropout": 1, "MaxPool": 3, "GlobalAveragePool": 1},
    "unet": {"InstanceNormalization": 10, "LeakyRelu": 10, "ConvTranspose": 2, "Concat": 2, "Sigmoid": 1},
    "vgg16": {"Conv": 13, "MaxPool": 5, "Flatten": 1, "Gemm": 3, "Dropout": 2},
    "vit": {"Gelu": 2, "LayerNormalization": 5, "Expand": 1, "Concat": 1, "Gather": 7, "Conv": 1},
}
# Operators whose presence would mean that a model is not the variant it claims to be.
ABSENT_OPS = {
    "bert": {"LayerNormalization", "Gelu"},
    "convnext_tiny": {"BatchNormalization", "Erf", "ReduceMean"},
    "gpt2": {"Gelu", "ReduceMean"},
    "mobilenet_v2": {"BatchNormalization", "Relu"},
    "resnet18": {"BatchNormalization", "Sum"},
    "resnet50": {"Add", "Flatten"},
    "squeezenet": {"Gemm", "MatMul"},
    "vit": {"Erf", "ReduceMean"},
}
OPSETS = {
    "bert": 11,
    "convnext_tiny": 20,
    "efficientnet_lite0": 13,
    "gpt2": 17,
    "lstm": 9,
    "mlp": 14,
    "mobilenet_v2": 11,
    "resnet18": 18,
    "resnet50": 8,
    "squeezenet": 10,
    "unet": 16,
    "vgg16": 12,
    "vit": 20,
}
# Float elements among the initialisers at default size. From the published parameter counts, less the scales
# of the normalisations (one per channel) where they are folded, plus their statistics where they are not.
PARAMETERS = {
    "bert": 109_482_240,
    "convnext_tiny": 28_589_128,
    "gpt2": 7_087_872 + 1_536,  # one block and the final normalisation
    "mobilenet_v2": 3_504_872 - 17_056,
    "resnet18": 11_689_512 - 4_800,
    "resnet50": 25_557_032 + 2 * 26_560,
    "squeezenet": 1_235_496,
    "vgg16": 138_357_544,
    "vit": 86_567_656,
    "mlp": 128 * 150_529 + 64 * 129 + 10 * 65,
}
# Options that change a graph's operators, beyond the defaults.
VARIANTS = [("unet", {"upsample": "resize"}), ("lstm", {"bidirectional": True})]


def run(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """The model's outputs by name, from ONNX Runtime on example inputs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns about every initialiser that is also an input
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session.run(names, models.example_inputs(model, seed)), strict=True))


def float_weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The float initialisers by name, without the zero states whose shape contains the batch."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: a for name, a in arrays.items() if np.issubdtype(a.dtype, np.floating) and a.any()}


def nodes(model: onnx.ModelProto, op_type: str) -> list[dict[str, object]]:
    """The attributes of every node of the type."""
    return [
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for node in model.graph.node
        if node.op_type == op_type
    ]


def test_the_tables_cover_the_zoo() -> None:
    assert set(EXPECTED_OPS) == set(OPSETS) == set(models.names())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", models.names())
def test_reduced_model_is_valid_and_alive(name: str, dtype: str) -> None:
    model = models.reduced(name, dtype=dtype)
    onnx.checker.check_model(model, full_check=True)
    outputs, others = run(model, 0), run(model, 1)
    for key, value in outputs.items():
        assert value.dtype == dtype, key
        wide = value.astype(np.float32)
        assert np.isfinite(wide).all(), key
        spread = wide.std()
        assert 1e-3 < spread < 10, f"{key} is constant or has left the range of a normal activation"
        # a network that ignores its input would hide wrong kernels
        assert np.abs(wide - others[key]).max() > 0.1 * spread, f"{key} hardly depends on the inputs"


@pytest.mark.parametrize("name", models.names())
def test_intermediate_values_fit_float16(name: str) -> None:
    model = models.reduced(name)
    inferred = onnx.shape_inference.infer_shapes(model)
    for value in inferred.graph.value_info:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            model.graph.output.append(value)
    for key, value in run(model).items():
        # attention masks are meant to be far out, and to stay so in float16: -10000 or the lowest number
        kept = value[value > -9000.0] if name in ("bert", "gpt2") else value
        assert np.abs(kept).max(initial=0.0) < 100.0, key


@pytest.mark.parametrize("name", models.names())
def test_two_builds_are_equal_bytes(name: str) -> None:
    first, second = (models.reduced(name).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", models.names())
def test_weights_depend_neither_on_batch_nor_on_dtype(name: str) -> None:
    weights = float_weights(models.reduced(name, batch=1))
    batched = float_weights(models.reduced(name, batch=3))
    rounded = float_weights(models.reduced(name, dtype="float16"))
    assert weights.keys() == batched.keys() == rounded.keys()
    for key, weight in weights.items():
        np.testing.assert_array_equal(batched[key], weight)
        np.testing.assert_array_equal(rounded[key], weight.astype(np.float16))


@pytest.mark.parametrize("name", models.names())
def test_batch_is_the_first_axis(name: str) -> None:
    model = models.reduced(name, batch=3)
    onnx.checker.check_model(model, full_check=True)
    for output in run(model).values():
        assert output.shape[0] == 3
        assert not np.array_equal(output[0], output[1])


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_variants_are_valid_and_finite(name: str, options: dict[str, object], dtype: str) -> None:
    model = models.reduced(name, dtype=dtype, **options)
    onnx.checker.check_model(model, full_check=True)
    (output,) = run(model).values()
    assert np.isfinite(output).all()
    assert output.astype(np.float32).std() > 1e-3


@pytest.mark.parametrize("name", models.names())
def test_operators_and_opset_are_those_of_the_exporter(name: str) -> None:
    model = models.reduced(name)
    counts = Counter(node.op_type for node in model.graph.node)
    short = {op: counts[op] for op, least in EXPECTED_OPS[name].items() if counts[op] < least}
    assert not short, f"fewer than expected: {short}"
    assert not ABSENT_OPS.get(name, set()) & counts.keys()
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSETS[name])]


def test_resnet50_is_written_as_by_an_old_exporter() -> None:
    model = models.reduced("resnet50")
    assert model.ir_version == 3
    assert {tensor.name for tensor in model.graph.initializer} < {entry.name for entry in model.graph.input}
    assert not any(node.name for node in model.graph.node)
    assert list(models.example_inputs(model)) == ["data"]


@pytest.mark.parametrize("name", ["efficientnet_lite0", "mobilenet_v2"])
def test_depthwise_convolutions_and_relu6_bounds_as_inputs(name: str) -> None:
    model = models.reduced(name)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    depthwise = [
        node
        for node, attributes in zip(
            (node for node in model.graph.node if node.op_type == "Conv"), nodes(model, "Conv"), strict=True
        )
        if attributes["group"] == shapes[node.input[1]][0] > 1
    ]
    assert len(depthwise) >= 16
    assert all(len(node.input) == 3 for node in model.graph.node if node.op_type == "Clip")


def test_mobilenet_v2_meets_both_clip_bounds() -> None:
    model = models.reduced("mobilenet_v2")
    clips = [node.output[0] for node in model.graph.node if node.op_type == "Clip"]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in clips)
    values = run(model)
    assert sum((values[clip] == 0).any() and (values[clip] == 6).any() for clip in clips) >= len(clips) // 3


def test_efficientnet_lite0_has_both_forms_of_same_padding() -> None:
    convolutions = nodes(models.reduced("efficientnet_lite0"), "Conv")
    assert any(c.get("auto_pad") == b"SAME_UPPER" and c["strides"] == [2, 2] for c in convolutions)
    assert any(c.get("pads") == [0, 0, 1, 1] for c in convolutions)
    assert any(c.get("pads") == [1, 1, 2, 2] for c in convolutions)


def test_squeezenet_reduced_size_needs_the_poolings_rounding_up() -> None:
    model = models.reduced("squeezenet")
    expected = run(model)["output"]
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ceil_mode":
                attribute.i = 0
    assert not np.allclose(run(model)["output"], expected)


def test_gpt2_is_causal() -> None:
    model = models.reduced("gpt2")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    hidden = models.example_inputs(model)["hidden_states"]
    changed = hidden.copy()
    changed[:, -1] *= -1.0  # not a shift, which the layer norms would take out again
    before, after = (session.run(["last_hidden_state"], {"hidden_states": x})[0] for x in (hidden, changed))
    np.testing.assert_allclose(after[:, :-1], before[:, :-1], atol=1e-5)
    assert np.abs(after[:, -1] - before[:, -1]).max() > 0.1


def test_bert_ignores_masked_tokens() -> None:
    model = models.reduced("bert")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = models.example_inputs(model)
    inputs["attention_mask"][:] = 1
    inputs["attention_mask"][:, 10:] = 0
    changed = {**inputs, "input_ids": inputs["input_ids"].copy()}
    changed["input_ids"][:, 10:] = (changed["input_ids"][:, 10:] + 1) % 100
    before, after = (session.run(["last_hidden_state"], feed)[0] for feed in (inputs, changed))
    np.testing.assert_allclose(after[:, :10], before[:, :10], atol=1e-5)
    assert np.abs(after[:, 10:] - before[:, 10:]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names() if IS_WHOLE else models.names()[::2])
def test_full_size_model_is_valid_and_of_published_size(name: str) -> None:
    model = models.build(name)
    onnx.checker.check_model(model, full_check=True)
    counted = sum(math.prod(t.dims) for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    assert counted == PARAMETERS.get(name, counted)
    assert counted > 500_000
