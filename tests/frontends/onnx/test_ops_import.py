"""The importer itself: what it refuses and how, folding, functions, control flow, parameters."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.core.errors import ModelError, ShapeError, UnsupportedOpsError
from subtune.frontends.onnx.ops import ConstantInputsError, import_onnx, supported_ops
from subtune.integrations.onnx_backend import SubtuneBackend

F = TensorProto.FLOAT


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "x" : 1]>\n{text}')


def ops_of(model: onnx.ModelProto, **kwargs: object) -> list[str]:
    """The Relax operators (or PrimFuncs) that `main` calls, in order."""
    main = import_onnx(model, **kwargs)["main"]  # type: ignore[arg-type]
    calls = [b.value for block in main.body.blocks for b in block.bindings if hasattr(b.value, "op")]
    return [c.op.name if c.op.name != "relax.call_tir" else str(c.args[0].name_hint) for c in calls]


def test_all_unsupported_nodes_are_listed_at_once() -> None:
    model = model_of("""agraph (float[4] x, string[2] s) => (float[4] y) {
        a = NonZero (x)
        b = Cast <to = 24> (x)
        c = Nonsense (a)
        d = Shape (a)
        y = Relu (x)
    }""")
    with pytest.raises(UnsupportedOpsError) as caught:
        import_onnx(model)
    text = str(caught.value)
    for part in ("input 's'", "NonZero node 'a'", "Cast node 'b'", "float8e8m0", "Nonsense node 'c'"):
        assert part in text
    assert "Shape" not in text


def test_symbolic_dimension_needs_a_shape() -> None:
    model = model_of("agraph (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }")
    with pytest.raises(ShapeError, match="symbolic dimension 'N'"):
        import_onnx(model)
    main = import_onnx(model, {"x": (2, 3)})["main"]
    assert [int(d) for d in main.params[0].ty.shape.values] == [2, 3]


def test_a_value_read_before_it_is_computed_is_a_model_error() -> None:
    model = model_of("agraph (float[3] x) => (float[3] y) { y = Add (x, z) z = Relu (x) }")
    with pytest.raises(ModelError, match="reads 'z'"):
        import_onnx(model)


def test_shape_arithmetic_folds_away() -> None:
    model = model_of("""agraph (float[2, 3, 4] x) => (float[2, 12] y)
        <int64 zero = {0}, int64[1] minus = {-1}, int64[1] ax = {0}> {
        s = Shape (x)
        n = Gather (s, zero)
        u = Unsqueeze (n, ax)
        t = Concat <axis = 0> (u, minus)
        y = Reshape (x, t)
    }""")
    assert ops_of(model) == ["relax.reshape"]


def test_an_input_that_decides_a_shape_is_named() -> None:
    model = model_of("""agraph (float[2, 3] x, int64[2] t) => (float[3, 2] y) {
        u = Abs (t)
        y = Reshape (x, u)
    }""")
    with pytest.raises(ConstantInputsError) as caught:
        import_onnx(model)
    assert caught.value.names == {"t"}
    assert ops_of(model, constants={"t": np.array([3, 2])}) == ["relax.reshape"]


def test_a_functions_body_takes_the_place_of_an_operator_without_converter() -> None:
    assert ("", "GroupNormalization") in supported_ops()
    model = model_of("""agraph (float[2, 4, 3] x, float[2] s, float[2] b) => (float[2, 4, 3] y) {
        y = GroupNormalization <num_groups = 2> (x, s, b)
    }""")
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    (y,) = SubtuneBackend.run_model(model, [x, np.array([1, 2], np.float32), np.array([0, 5], np.float32)])
    rows = x.reshape(2, 2, 6)
    z = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    expected = z * np.array([1, 2]).reshape(1, 2, 1) + np.array([0, 5]).reshape(1, 2, 1)
    np.testing.assert_allclose(y, expected.reshape(2, 4, 3), rtol=1e-4, atol=1e-5)


def test_a_models_own_function_is_inlined_with_its_attributes() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
        agraph (float[3] x) => (float[3] y) { y = local.leaky <slope = 0.5> (x) }
        <domain: "local", opset_import: ["" : 18]>
        leaky <slope> (v) => (w) { w = LeakyRelu <alpha: float = @slope> (v) }
    """)
    (y,) = SubtuneBackend.run_model(model, [np.array([-2, 0, 3], np.float32)])
    np.testing.assert_array_equal(y, np.array([-1, 0, 3], np.float32))


def test_loop_with_a_known_trip_count_is_unrolled() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["s2"]),
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Identity", ["s2"], ["o"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", F, [2]),
        ],
        [helper.make_empty_tensor_value_info(n) for n in ("c2", "s2", "o")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)],
        "g",
        [helper.make_tensor_value_info("x", F, [2])],
        [helper.make_tensor_value_info("last", F, [2]), helper.make_tensor_value_info("all", F, [3, 2])],
        [numpy_helper.from_array(np.array(3, np.int64), "n")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    last, every = SubtuneBackend.run_model(model, [np.array([1, 10], np.float32)])
    np.testing.assert_array_equal(last, [4, 40])
    np.testing.assert_array_equal(every, [[2, 20], [3, 30], [4, 40]])


def test_weights_can_be_arguments() -> None:
    w = np.arange(32, dtype=np.float32).reshape(4, 8)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", F, [2, 4])],
        [helper.make_tensor_value_info("y", F, [2, 8])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    main = import_onnx(model, keep_params=True)["main"]
    assert [p.name for p in main.params] == ["x", "w"]
    assert int(main.attrs["num_input"]) == 1
    np.testing.assert_array_equal(main.attrs["params"][0].numpy(), w)
    assert len(import_onnx(model)["main"].params) == 1


def test_importing_leaves_tvms_converters_alone() -> None:
    from tvm.relax.frontend.onnx import onnx_frontend

    before = onnx_frontend._get_convert_map()
    import_onnx(model_of("agraph (float[3] x) => (float[3] y) { y = Celu (x) }"))
    assert onnx_frontend._get_convert_map() == before


def test_int64_constants_keep_their_dtype() -> None:
    model = model_of("agraph (int64[2] x) => (int64[2] y) <int64[2] big = {5000000000, -1}> { y = Add (x, big) }")
    (y,) = SubtuneBackend.run_model(model, [np.array([1, 1])])
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, [5000000001, 0])
