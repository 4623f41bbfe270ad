"""Operators that cannot be imported: all at once, with their nodes and the reason."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from subtune.core.errors import ModelError, UnsupportedOpsError
from subtune.frontends import load

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.example" : 1, "ai.onnx.ml" : 2, "com.microsoft" : 1]>'


def test_all_are_listed_with_their_nodes() -> None:
    model = onnx.parser.parse_model(
        HEAD
        + """
        g (float[4,4] x) => (float[4,4] y) {
            a = Det(x)
            b = com.example.Relu(x)
            c = ai.onnx.ml.Normalizer<norm="L2">(b)
            d = com.example.Relu(c)
            e = Relu(d)
            y = Add(e, a)
        }
    """
    )
    model.graph.node[3].name = "second"
    with pytest.raises(UnsupportedOpsError) as caught:
        load(model)
    text = str(caught.value)
    assert "Det in 'a'" in text
    assert "com.example.Relu in 'b', 'second'" in text
    assert "ai.onnx.ml.Normalizer in 'c'" in text
    assert " Relu in" not in text
    assert "\n" not in text


def test_many_nodes_of_one_op_are_counted() -> None:
    nodes = [helper.make_node("Det", ["x"], [f"d{i}"]) for i in range(9)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info("d0", TensorProto.FLOAT, [])],
    )
    with pytest.raises(UnsupportedOpsError, match="'d0', 'd1', 'd2', 'd3', 'd4', 4 more"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_they_come_before_missing_shapes() -> None:
    model = onnx.parser.parse_model(HEAD + "g (float[n,n] x) => (float y) { y = Det(x) }")
    with pytest.raises(UnsupportedOpsError, match="Det in 'y'"):
        load(model)


LOOP = """
g (float[4] x, bool go) => (float[4] y) {
    n = Constant<value = int64 {3}>()
    y = Loop(n, go, x) <body = b (int64 i, bool c, float[4] v) => (bool c2, float[4] w) {
        c2 = Identity(c)
        w = com.example.Twist(v)
    }>
}
"""


def test_loops_are_looked_into() -> None:
    with pytest.raises(UnsupportedOpsError, match=r"com\.example\.Twist in 'w'"):
        load(onnx.parser.parse_model(HEAD + LOOP))


def test_loops_are_unrolled_where_the_number_of_steps_is_known() -> None:
    text = LOOP.replace("com.example.Twist(v)", "Add(v, v)")
    with pytest.raises(ModelError, match="value of input 'go' decides shapes"):
        load(onnx.parser.parse_model(HEAD + text))
    known = text.replace(", bool go", "").replace("{\n    n", "{ go = Constant<value = bool {1}>()\n    n")
    assert load(onnx.parser.parse_model(HEAD + known)).outputs[0].shape == (4,)


IF = """
g (float[4] x, bool c) => (float[4] y) {
    y = If(c) <then_branch = t () => (float[4] a) { a = Relu(x) },
               else_branch = e () => (float[4] b) { b = com.example.Twist(x) }>
}
"""


def test_both_branches_of_an_if_at_run_time_are_looked_into() -> None:
    with pytest.raises(UnsupportedOpsError, match=r"com\.example\.Twist node 'b' is not supported"):
        load(onnx.parser.parse_model(HEAD + IF))


def test_branches_of_different_shapes_are_refused_at_run_time() -> None:
    text = IF.replace("(float[4] b) { b = com.example.Twist(x) }", "(float[8] b) { b = Concat<axis=0>(x, x) }")
    text = text.replace("=> (float[4] y)", "=> (float[n] y)")
    with pytest.raises(UnsupportedOpsError, match=r"branches that give float32\[4\] and float32\[8\]"):
        load(onnx.parser.parse_model(HEAD + text))


def test_the_branch_not_taken_does_not_matter() -> None:
    text = IF.replace("(float[4] x, bool c)", "(float[4] x)").replace(
        "{\n    y", "{ c = Constant<value = bool {1}>()\n y"
    )
    assert load(onnx.parser.parse_model(HEAD + text)).outputs[0].shape == (4,)


def test_a_sequence_inside_the_graph_is_resolved() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[4] x) => (float[8] y) { s = SequenceConstruct(x, x)\n y = ConcatFromSequence<axis=0>(s) }"
    )
    (output,) = load(model).outputs
    assert output.shape == (8,)


def test_other_domains_are_not_taken_for_onnx() -> None:
    """An op of ONNX's name in that domain is not taken for ONNX's."""
    other = onnx.parser.parse_model(HEAD + "g (float[4] x) => (float[4] y) { y = com.microsoft.Softmax(x) }")
    with pytest.raises(UnsupportedOpsError, match=r"com\.microsoft\.Softmax in 'y'"):
        load(other)


def test_an_input_that_decides_shapes_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = onnx.parser.parse_model(
        HEAD
        + """
        g (float[4,4] x, int64[1] k, int64[2] axes) => (float[4,4] y, float[1,1] r) {
            r = ReduceL1(x, axes)
            y = Relu(x)
        }
    """
    )
    model.opset_import[0].version = 18
    with pytest.raises(ModelError, match="value of input 'axes' decides shapes") as caught:
        load(model)
    assert "\n" not in str(caught.value)
    out, err = capfd.readouterr()
    assert out == err == ""
