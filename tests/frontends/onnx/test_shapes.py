"""Input shapes: `--shape` values, symbols, and models whose shapes contradict one another."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from subtune.core.errors import ModelError, ShapeError, SubtuneError
from subtune.frontends import TensorSpec, load, parse_shape_flag

TWO = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[batch,seq,8] ids, float[batch,8] mask) => (float[batch,seq,8] y) {
    m = Unsqueeze(mask, one)
    y = Mul(ids, m)
}
"""


def two() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TWO)
    model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    return model


def relu(shape: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> g (float{shape} x) => (float{shape} y) {{ y = Relu(x) }}'
    )


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("input=1,3,224,224", ("input", (1, 3, 224, 224))),
        ("batch=8", ("batch", (8,))),
        (" x = 1 , 2 ", ("x", (1, 2))),
        ("a=b:0=4", ("a=b:0", (4,))),
        ("serving_default_input:0=1,2", ("serving_default_input:0", (1, 2))),
    ],
)
def test_parse_shape_flag(text: str, parsed: tuple[str, tuple[int, ...]]) -> None:
    assert parse_shape_flag(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "input", "=1,2", "x=", "x=1,,2", "x=1,a", "x=-1,3", "x=0", "x=1x3x4", "x=1.5", "x=²"]
)
def test_parse_shape_flag_refuses(text: str) -> None:
    with pytest.raises(ShapeError, match="--shape input=1,3,224,224") as caught:
        parse_shape_flag(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "shapes",
    [
        {"batch": 2, "seq": 5},
        {"batch": (2,), "seq": [5]},
        {"ids": (2, 5, 8)},
        {"ids": (2, 5, 8), "mask": (2, 8)},
        {"mask": (2, 8), "seq": 5},
    ],
)
def test_symbols_are_resolved_everywhere(shapes: dict) -> None:
    imported = load(two(), shapes)
    assert [spec.shape for spec in imported.inputs] == [(2, 5, 8), (2, 8)]
    assert imported.outputs[0].shape == (2, 5, 8)


def test_what_is_missing_is_named_with_the_flag() -> None:
    with pytest.raises(ShapeError) as caught:
        load(two())
    text = str(caught.value)
    assert "'ids'" in text
    assert "0 ('batch'), 1 ('seq')" in text
    assert "--shape ids=1,1,8 --shape mask=1,8" in text


def test_the_flag_shown_works() -> None:
    with pytest.raises(ShapeError) as caught:
        load(two(), {"batch": 4})
    flag = str(caught.value).rsplit("--shape ", 1)[1].rstrip(".")
    assert load(two(), dict([parse_shape_flag(flag)])).inputs[0].shape == (4, 1, 8)


@pytest.mark.parametrize(
    ("shapes", "pattern"),
    [
        ({"x": (1, 2)}, "no input.*'x'.*'ids' .batch, seq, 8., 'mask'"),
        ({"ids": (2, 5)}, "'ids' has 3 dimensions .batch, seq, 8., but the shape given has 2"),
        ({"ids": (2, 5, 9)}, "'ids' has the fixed size 8 in dimension 2; the shape given says 9"),
        ({"ids": (2, 5, 8), "mask": (3, 8)}, "'batch' is 2 according to 'ids' and 3 according to 'mask'"),
        ({"ids": (2, 5, 8), "batch": 3}, "'batch' is 2 according to 'ids' and 3 according to 'batch'"),
        ({"batch": (2, 3), "seq": 1}, "'batch' is a symbol of the model and takes one value"),
        ({"batch": "2", "seq": 1}, "no size"),
        ({"batch": -1, "seq": 1}, "-1, which is no size"),
        ({"batch": True, "seq": 1}, "no size"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict, pattern: str) -> None:
    with pytest.raises(ShapeError, match=pattern):
        load(two(), shapes)


def test_unnamed_dimension() -> None:
    model = relu("[?,3]")
    with pytest.raises(ShapeError, match=r"dimension 0 \(unnamed\).*--shape x=1,3\."):
        load(model)
    assert load(model, {"x": (7, 3)}).outputs[0].shape == (7, 3)


def test_minus_one_is_an_unnamed_dimension() -> None:
    model = relu("[2,3]")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.output[0].type.tensor_type.shape.dim[0].Clear()
    with pytest.raises(ShapeError, match="unnamed"):
        load(model)
    assert load(model, {"x": (7, 3)}).outputs[0].shape == (7, 3)


def test_unknown_rank() -> None:
    model = relu("[2,3]")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(ShapeError, match="unknown number of dimensions"):
        load(model)
    assert load(model, {"x": (2, 3, 4)}).outputs[0].shape == (2, 3, 4)


def test_scalars_are_not_unknown() -> None:
    model = relu("[2]")
    for value in (model.graph.input[0], model.graph.output[0]):
        del value.type.tensor_type.shape.dim[:]
    assert load(model).inputs[0].shape == load(model).outputs[0].shape == ()


def test_an_output_without_type_is_inferred() -> None:
    model = relu("[2,3]")
    model.graph.output[0].ClearField("type")
    assert load(model).outputs[0] == TensorSpec("y", (2, 3), "float32")


def test_repeating_a_fixed_shape_is_fine() -> None:
    assert load(relu("[2,3]"), {"x": (2, 3)}).inputs[0].shape == (2, 3)


def test_unnamed_node_of_an_inconsistent_model_is_named_by_its_output() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2,3] x, float[4,5] z) => (float[2,5] prod)'
        "{ prod = MatMul(x, z) }"
    )
    with pytest.raises(ShapeError, match=r"contradict.*MatMul.*prod"):
        load(model)


def test_weights_that_do_not_fit_are_found() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[1,3,8,8] x) => (float[1,32,8,8] y)'
        "{ y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w) }"
    )
    model.graph.node[0].name = "stem"
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [32, 5, 3, 3], [0.0] * 1440))
    with pytest.raises(SubtuneError, match="stem"):
        load(model)


def test_declared_output_that_contradicts_is_refused() -> None:
    model = relu("[2,3]")
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    with pytest.raises(ShapeError, match="contradict"):
        load(model)


def test_types_that_contradict_are_refused() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2] x, int64[2] z) => (float[2] y){ y = Add(x, z) }'
    )
    with pytest.raises(ModelError, match="contradict"):
        load(model)


def test_shapes_that_depend_on_data_are_refused() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[4,2] x) => (float[r,c] y)'
        "{ idx = NonZero(x)\n y = Cast<to=1>(idx) }"
    )
    with pytest.raises(ModelError, match=r"NonZero node 'idx' .*its output's shape depends on data at run time"):
        load(model)


def test_a_reshape_by_an_input_is_refused() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[4,2] x, int64[2] s) => (float[r,c] y){ y = Reshape(x, s) }'
    )
    with pytest.raises(ShapeError, match="value of input 's' decides shapes"):
        load(model)
