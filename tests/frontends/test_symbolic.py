"""Inputs with symbols: how these are named, and that the shapes of an instance import."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as h
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subtune import frontends
from subtune.core.dims import Dim, parse
from subtune.core.errors import ModelError, ShapeError
from subtune.frontends import SymbolicInput, instance, load, parse_shape_flag, substituted, symbolic_inputs, symbols_of
from subtune.frontends.symbolic import named, size_at
from tests.cached_attention import HEADS, KEY, WIDTH, cached_attention

RELAY = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, 3), float32], %pair: (Tensor[(2, 3), float32], Tensor[(3), float32]), %y: Tensor[(4, ?), float32]) {
  (nn.relu(%x), add(%pair.0, %pair.1), nn.relu(%y))
}"""  # noqa: E501


def taking(*dims: int | str | None) -> onnx.ModelProto:
    """Relu of an input `x` of these dimensions."""
    x = h.make_tensor_value_info("x", 1, list(dims))
    y = h.make_tensor_value_info("y", 1, [None] * len(dims))
    return h.make_model(h.make_graph([h.make_node("Relu", ["x"], ["y"])], "g", [x], [y]), ir_version=8)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("batch", "batch"),
        (" batch ", "batch"),
        ("past + seq", "past + seq"),
        ("2*seq", "2*seq"),
        ("seq-1", "seq_1"),
        ("seq - 1", "seq - 1"),
        ("unk__123", "unk__123"),
        ("x_dynamic_axes_1", "x_dynamic_axes_1"),
        ("batch size", "batch_size"),
        ("<batch>", "batch"),
        ("max-len", "max_len"),
        ("1batch", "_1batch"),
        ("seq//2", "seq_2"),
        ("größe", "größe"),
        ("число", "_число"),
        ("?", "x.0"),
        ("-1", "x.0"),
        ("None", "x.0"),
        ("0", "x.0"),
        ("", "x.0"),
        (None, "x.0"),
        ("12", "12"),
        (12, "12"),
    ],
)
def test_what_a_dimension_is_called(text: int | str | None, name: str) -> None:
    shape = named({"x": [text]})["x"]
    assert shape is not None
    assert str(shape[0]) == name
    if isinstance(shape[0], Dim):
        assert parse(name) == shape[0]  # so that a user can write it


def test_a_hyphen_is_a_minus_between_dimensions() -> None:
    assert str(named({"x": ["max", "max-len", "len"]})["x"]) == str((parse("max"), parse("max - len"), parse("len")))


def test_names_made_up_are_of_one_dimension_each() -> None:
    dims = named(
        {"a": ["batch size", "batch_size", "batch-size", None], "a.3": [None], "b": ["a.3", "batch size", "?"]}
    )
    shown = {name: tuple(map(str, shape or ())) for name, shape in dims.items()}
    assert shown["a"] == ("batch_size_2", "batch_size", "batch_size_3", "a.3_2")
    assert shown["b"] == ("a.3", "batch_size_2", "b.2")
    assert shown["a.3"] == ("a.3.0",)


def test_an_unnamed_dimension_of_an_input_whose_name_is_no_name() -> None:
    assert str((named({"serving:0": [None]})["serving:0"] or ())[0]) == "serving_0.0"
    assert str((named({"0": [None]})["0"] or ())[0]) == "input.0"


def test_the_inputs_of_a_decoder_with_a_cache() -> None:
    inputs = symbolic_inputs(cached_attention())
    assert [str(one) for one in inputs] == [
        "input_ids: int64[batch, seq]",
        "attention_mask: int64[batch, past + seq]",
        f"{KEY}: float32[batch, {HEADS}, past, {WIDTH}]",
    ]
    assert symbols_of(inputs) == ("batch", "seq", "past")


@settings(max_examples=10, deadline=None)
@given(batch=st.integers(1, 3), past=st.integers(0, 9), seq=st.integers(1, 5))
def test_every_instance_imports(batch: int, past: int, seq: int) -> None:
    model = cached_attention()
    values = {"batch": batch, "past": past, "seq": seq}
    shapes = instance(symbolic_inputs(model), values)
    imported = load(model, shapes)
    assert [spec.shape for spec in imported.inputs] == [
        (batch, seq),
        (batch, past + seq),
        (batch, HEADS, past, WIDTH),
    ]
    assert imported.outputs[0].shape == (batch, HEADS, past + seq, WIDTH)
    assert load(model, values).inputs == imported.inputs


@pytest.mark.parametrize(
    "shapes",
    [
        {"batch": 2, "past": 3, "seq": 4},
        {"input_ids": (2, 4), "attention_mask": (2, 7)},
        {"batch": 2, "seq": 4, "past + seq": 7},
        {"attention_mask": (2, 7), KEY: (2, HEADS, 3, WIDTH)},
        {"input_ids.0": 2, "input_ids.1": 4, "attention_mask.1": 7},
    ],
)
def test_expressions_follow_from_what_is_given(shapes: dict) -> None:
    specs = load(cached_attention(), shapes).inputs
    assert [spec.shape for spec in specs] == [(2, 4), (2, 7), (2, HEADS, 3, WIDTH)]


@pytest.mark.parametrize(
    ("shapes", "pattern"),
    [
        (
            {"batch": 1, "past": 3, "seq": 4, "attention_mask": (1, 8)},
            "past . seq is 8 according to 'attention_mask', and 7 where past=3, seq=4",
        ),
        ({"batch": 1, "seq": 4, "attention_mask": (1, 3)}, "No size of 'past' makes the dimension past . seq 3"),
        ({"past": (1, 2)}, "'past' is a symbol of the model and takes one value"),
        ({"input_ids.2": 1}, "no input .and no symbol. 'input_ids.2'"),
        ({f"{KEY}.1": 3}, "the fixed size 2 in dimension 1; the shape given says 3"),
    ],
)
def test_expressions_that_do_not_fit(shapes: dict, pattern: str) -> None:
    with pytest.raises(ShapeError, match=pattern):
        load(cached_attention(), shapes)


def test_what_is_fixed_is_fixed_in_expressions() -> None:
    inputs = symbolic_inputs(cached_attention(), {"past": 3, "batch": 1})
    assert [str(one) for one in inputs][:2] == ["input_ids: int64[1, seq]", "attention_mask: int64[1, seq + 3]"]
    shapes = instance(inputs, {"seq": 2}, {"past": 3, "batch": 1})
    assert [spec.shape[1] for spec in load(cached_attention(), shapes).inputs] == [2, 5, HEADS]


def test_one_text_of_two_dimensions_that_is_no_name_is_still_given_at_once() -> None:
    assert load(taking("?", "?"), {"?": 3}).inputs[0].shape == (3, 3)
    assert load(taking("?", "?"), {"x.0": 3, "x.1": 2}).inputs[0].shape == (3, 2)
    assert load(taking("batch size"), {"batch size": 3}).inputs == load(taking("batch size"), {"batch_size": 3}).inputs


def test_an_expression_alone_may_be_given_whole() -> None:
    model = taking("a + b", "a + b")
    assert load(model, {"a + b": 5}).inputs[0].shape == (5, 5)
    with pytest.raises(ShapeError, match=r"dimension a . b is 5 and, according to 'x', 6"):
        load(model, {"a + b": 5, "x": (6, 6)})
    with pytest.raises(ShapeError, match=r"--shape x=2,2\.$"):
        load(model)


def test_a_dimension_is_not_negative() -> None:
    model = taking("seq - 5")
    assert load(model, {"seq": 5}).inputs[0].shape == (0,)
    with pytest.raises(ShapeError, match="'x' has a dimension seq - 5, which is -2 where seq=3"):
        load(model, {"seq": 3})
    with pytest.raises(ShapeError, match="which is -2 where seq=3"):
        instance(symbolic_inputs(model), {"seq": 3})
    assert size_at("x", parse("2*seq"), {"seq": 3}) == 6


def test_symbols_of_outputs_alone_are_none_of_the_model() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[n,2] x) => (int64[2,found] y) { y = NonZero(x) }'
    )
    assert symbols_of(symbolic_inputs(model)) == ("n",)


def test_weights_among_the_inputs_are_no_inputs() -> None:
    model = cached_attention()
    model.graph.input.append(h.make_tensor_value_info("table", 1, ["words", "width"]))
    assert [one.name for one in symbolic_inputs(model)] == ["input_ids", "attention_mask", KEY]


def test_static_models_have_no_symbols() -> None:
    inputs = symbolic_inputs("zoo:mlp?image=8&batch=2")
    assert symbols_of(inputs) == ()
    assert inputs == (SymbolicInput("input", (2, 8, 8, 3), "float32"),)
    assert instance(inputs, {}) == {}


def test_an_unknown_rank_needs_a_shape() -> None:
    model = taking(1)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ShapeError, match=r"unknown number of dimensions: give its shape, .* --shape x=1,1\.$"):
        symbolic_inputs(model)
    assert symbolic_inputs(model, {"x": (2, 3)})[0].shape == (2, 3)


def test_what_is_no_model_is_said() -> None:
    with pytest.raises(ModelError, match="not int"):
        symbolic_inputs(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no file"):
        symbolic_inputs("none.onnx")


def test_the_message_shows_ranges_that_can_be_declared() -> None:
    with pytest.raises(ShapeError) as caught:
        load(cached_attention(), {"batch": 1})
    text = str(caught.value)
    assert "for example --dynamic seq=1..8 --dynamic past=1..8, or give fixed sizes" in text
    flags = [part.strip(" .") for part in text.split("--shape ")[1:]]
    assert load(cached_attention(), dict(map(parse_shape_flag, flags))).inputs[1].shape == (1, 2)
    with pytest.raises(ShapeError, match=r"--dynamic x\.1=1\.\.8, or"):
        load(taking(2, None))


def test_only_who_compiles_hears_of_ranges() -> None:
    with pytest.raises(ShapeError, match="give fixed sizes") as caught:
        frontends.load_whole(cached_attention())
    assert "--dynamic" not in str(caught.value)


def test_symbols_are_put_in() -> None:
    dim = parse("past*batch + seq")
    assert str(substituted(dim, {"past": 3, "seq": Dim.symbol("batch")})) == "4*batch"
    assert substituted(dim, {"past": 3, "seq": 1, "batch": 2}) == 7
    assert substituted(5, {"past": 3}) == 5


class TestRelay:
    def test_unknown_dimensions_have_names_of_their_own(self) -> None:
        inputs = symbolic_inputs(RELAY)
        assert [str(one) for one in inputs] == [
            "x: float32[x.0, 3]",
            "pair_0: float32[2, 3]",
            "pair_1: float32[3]",
            "y: float32[4, y.1]",
        ]
        shapes = instance(inputs, {"x.0": 7, "y.1": 5})
        assert [spec.shape for spec in load(RELAY, shapes).inputs] == [(7, 3), (2, 3), (3,), (4, 5)]

    def test_some_may_be_fixed(self) -> None:
        inputs = symbolic_inputs(RELAY, {"x.0": 2})
        assert symbols_of(inputs) == ("y.1",)
        shapes = instance(inputs, {"y.1": 5}, {"x.0": 2})
        assert [spec.shape for spec in load(RELAY, shapes).inputs] == [(2, 3), (2, 3), (3,), (4, 5)]

    def test_what_it_cannot_be(self) -> None:
        with pytest.raises(ShapeError, match="contradicts"):
            symbolic_inputs(RELAY, {"y.0": 5})
        with pytest.raises(ShapeError, match=r"--shape x\.2: the model's inputs are x, pair_0, pair_1, y"):
            symbolic_inputs(RELAY, {"x.2": 5})

    def test_fields_of_a_tuple(self) -> None:
        text = RELAY.replace("(Tensor[(2, 3)", "(Tensor[(?, 3)")
        inputs = symbolic_inputs(text, {"x": (2, 3), "pair_1": (3,)})
        assert symbols_of(inputs) == ("pair_0.0", "y.1")
        shapes = instance(inputs, {"pair_0.0": 7, "y.1": 5}, {"x": (2, 3)})
        assert [spec.shape for spec in load(text, shapes).inputs] == [(2, 3), (7, 3), (3,), (4, 5)]

    def test_the_message_shows_ranges(self) -> None:
        with pytest.raises(ModelError, match=r"for example --dynamic x\.0=1\.\.8"):
            load(RELAY)

    def test_a_parameter_without_a_type_is_left_to_its_use(self) -> None:
        text = "def @main(%x: Tensor[(?, 3), float32], %w) {\n  add(%x, %w)\n}"
        values = {"w": np.zeros(3, "float32")}
        assert [one.name for one in symbolic_inputs(text, None, frontends.Parameters(values))] == ["x"]
        assert [one.name for one in symbolic_inputs(text)] == ["x"]
