"""A good ONNX model through `load`: what comes out, and that it computes the right numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from subtune import models
from subtune.core.errors import ModelError, ShapeError
from subtune.frontends import Imported, TensorSpec, load
from subtune.frontends.onnx.reference import OnnxRuntime
from subtune.passes.partition import partition
from subtune.pipeline import normalize
from tests.plain_tvm import compiled

MLP = """
<ir_version: 8, opset_import: ["" : 13]>
mlp (float[2,8] x) => (float[2,4] y) {
    h = MatMul(x, w)
    r = Relu(h)
    s = Add(r, b)
    y = Softmax<axis=-1>(s)
}
"""


def weights(rng: np.random.Generator, **shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(rng.standard_normal(s).astype("float32"), n) for n, s in shapes.items()]


def mlp() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MLP)
    model.graph.initializer.extend(weights(np.random.default_rng(0), w=(8, 4), b=(4,)))
    return model


def run(imported: Imported, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with tvm.transform.PassContext(opt_level=0):
        vm = relax.VirtualMachine(compiled(imported.mod), tvm.cpu())
    results = vm["main"](*(tvm.runtime.tensor(feeds[spec.name]) for spec in imported.inputs))
    return [r.numpy() for r in (results if len(imported.outputs) > 1 else [results])]


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray], imported: Imported | None = None) -> None:
    """subtune's import, compiled plainly, against ONNX Runtime; 1e-5 (fp32, sums of at most 200 terms)."""
    ours = run(imported or load(model), feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, reference in zip(ours, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5)


def ops_of(imported: Imported) -> list[str]:
    names: list[str] = []

    def visit(expr: object) -> None:
        if isinstance(expr, relax.Call):
            names.append(expr.op.name)

    relax.analysis.post_order_visit(imported.mod["main"], visit)
    return names


def test_specs_and_parameters() -> None:
    imported = load(mlp())
    assert imported.inputs == (TensorSpec("x", (2, 8), "float32"),)
    assert imported.outputs == (TensorSpec("y", (2, 4), "float32"),)
    assert len(imported.mod["main"].params) == 1
    relax.analysis.well_formed(imported.mod)  # raises


def test_numbers_agree_with_onnxruntime() -> None:
    agree(mlp(), {"x": np.random.default_rng(1).standard_normal((2, 8)).astype("float32")})


def test_path_bytes_and_proto_give_the_same_module(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(mlp(), path)
    from_path, from_bytes, from_proto = load(path), load(path.read_bytes()), load(mlp())
    assert from_path.name == "small"
    assert from_path.reference == OnnxRuntime(path)
    assert from_proto.name == "mlp"
    tvm.ir.assert_structural_equal(from_path.mod, from_proto.mod)
    tvm.ir.assert_structural_equal(load(str(path)).mod, from_bytes.mod)


def test_the_given_protobuf_is_left_alone() -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    reference = load(model).reference
    assert isinstance(reference, OnnxRuntime)
    assert reference.model is model
    assert model.SerializeToString(deterministic=True) == before


def test_a_value_used_twice_is_computed_once() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[4] x) => (float[4] y)'
        "{ e = Exp(x)\n a = Relu(e)\n b = Tanh(e)\n y = Add(a, b) }"
    )
    assert ops_of(load(model)).count("relax.exp") == 1


def test_several_outputs_and_an_output_that_is_a_constant() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[3,4] x) => (float[3,4] y, int64[2] s)'
        "{ y = Relu(x)\n s = Shape(x) }"
    )
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
    y, s = run(load(model), {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(s, [3, 4])


@pytest.mark.parametrize("elements", [4, 4096])
def test_old_ir_lists_initialisers_among_the_inputs(elements: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 3, opset_import: ["" : 7]> g (float[{elements}] x, float[{elements}] w)'
        f"=> (float[{elements}] y) {{ y = Add(x, w) }}"
    )
    model.graph.initializer.extend(weights(np.random.default_rng(0), w=(elements,)))
    imported = load(model)
    assert [spec.name for spec in imported.inputs] == ["x"]
    agree(model, {"x": np.ones(elements, "float32")}, imported)


def test_big_constant_nodes_are_weights() -> None:
    value = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(value)),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 64])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    agree(model, {"x": np.ones((3, 64), "float32")})


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bfloat16", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    op = "Not" if dtype == "bool" else "Identity"
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) if dtype != "bfloat16" else TensorProto.BFLOAT16
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", elem_type, [2])],
        [helper.make_tensor_value_info("y", elem_type, [2])],
    )
    imported = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8))
    assert imported.inputs[0].dtype == imported.outputs[0].dtype == dtype
    assert str(imported.mod["main"].params[0].ty.dtype) == dtype


def test_fp16_model() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float16[2,64] x) => (float16[2,64] y)'
        "{ h = MatMul(x, w)\n y = Relu(h) }"
    )
    w = np.random.default_rng(0).standard_normal((64, 64)).astype("float16")
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    x = np.random.default_rng(1).standard_normal((2, 64)).astype("float16")
    (y,) = run(load(model), {"x": x})
    assert y.dtype == np.float16
    # 64 terms accumulated in fp16: 64 * 2**-11 relative to the largest partial sum
    exact = np.maximum(x.astype("float64") @ w.astype("float64"), 0)
    np.testing.assert_allclose(y.astype("float64"), exact, atol=64 * 2**-11 * np.abs(exact).max())


def test_nodes_out_of_order_are_sorted() -> None:
    model = mlp()
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    tvm.ir.assert_structural_equal(load(model).mod, load(mlp()).mod)


def test_functions_of_the_model_are_inlined() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13, "mine" : 1]>
        g (float[4] x) => (float[4] y) { h = mine.twice(x)
            y = mine.twice(h) }
        <domain: "mine", opset_import: ["" : 13]>
        twice (a) => (b) { b = Add(a, a) }
    """)
    assert ops_of(load(model)).count("relax.add") == 2
    agree(model, {"x": np.arange(4, dtype="float32")})


def test_shape_arithmetic_becomes_constants() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[batch,3,4] x) => (float[b2,12] y)
        <int64[1] zero = {0}, int64[1] last = {-1}>
        {
            s = Shape(x)
            n = Gather<axis=0>(s, zero)
            t = Concat<axis=0>(n, last)
            y = Reshape(x, t)
        }
    """)
    imported = load(model, {"batch": 5})
    assert imported.outputs[0].shape == (5, 12)
    assert set(ops_of(imported)) == {"relax.reshape"}
    agree(model, {"x": np.arange(60, dtype="float32").reshape(5, 3, 4)}, imported)


def test_a_shape_that_only_folding_resolves() -> None:
    """NonZero of a constant: inference alone gives up on its shape."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[3,4] x) => (float[r,c] y) <int64[4] mask = {1,0,1,1}>
        { i = NonZero(mask)
          f = Squeeze(i)
          y = Gather<axis=1>(x, f) }
    """)
    imported = load(model)
    assert imported.outputs[0].shape == (3, 3)
    agree(model, {"x": np.arange(12, dtype="float32").reshape(3, 4)}, imported)


IF = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[2,3] x) => (float[n,m] y)
<int64[1] rank = {2}, int64[1] axis = {0}>
{
    s = Shape(x)
    r = Shape(s)
    c = Equal(r, rank)
    y = If(c) <
        then_branch = then () => (float[n,m] a) { t = Relu(x)
            a = Neg(t) },
        else_branch = otherwise () => (float[n,m] e) { e = Unsqueeze(x, axis) }
    >
}
"""


@pytest.mark.parametrize("value", [2, 3])
def test_if_with_a_constant_condition_becomes_its_branch(value: int) -> None:
    text = IF.replace("{2}", f"{{{value}}}").replace("float[n,m]", "float[n,m]" if value == 2 else "float[k,n,m]")
    model = onnx.parser.parse_model(text)
    imported = load(model)
    assert imported.outputs[0].shape == ((2, 3) if value == 2 else (1, 2, 3))
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    (y,) = run(imported, {"x": x})
    np.testing.assert_array_equal(y, -np.maximum(x, 0) if value == 2 else x[None])


def test_two_ifs_of_one_name() -> None:
    taken, other = "t () => (float[2] a) { h = Relu(x)\n a = Neg(h) }", "e () => (float[2] b) { b = Abs(x) }"
    branch = f"<then_branch = {taken}, else_branch = {other}>"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y, float[2] z) <bool yes = {1}>'
        f"{{ y = If(yes) {branch}\n z = If(yes) {branch} }}"
    )
    for node in model.graph.node:
        node.name = "If"
    for result in run(load(model), {"x": np.array([-1, 2], "float32")}):
        np.testing.assert_array_equal(result, [0, -2])


def test_quantised_weights_stay_integers() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[2,4] x) => (float[2,4] y)
        <int8[4,4] q = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float scale = {0.5}, int8 zero = {0}>
        { w = DequantizeLinear(q, scale, zero)
          y = MatMul(x, w) }
    """)
    constants: list[str] = []

    def visit(expr: object) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            constants.append(str(expr.ty.dtype))

    relax.analysis.post_order_visit(load(model).mod["main"], visit)
    assert "int8" in constants


@pytest.mark.parametrize(("opset", "kernel"), [(7, 1), (9, 1), (13, 1), (17, 1), (21, 1)])
def test_opsets_agree_with_onnxruntime(opset: int, kernel: int) -> None:
    """Conv, BatchNormalization, Relu, GlobalAveragePool, Flatten, Gemm: what every old vision model has."""
    rng = np.random.default_rng(opset)
    model = onnx.parser.parse_model(f"""
        <ir_version: 7, opset_import: ["" : {opset}]>
        g (float[1,3,8,8] x) => (float[1,10] y) {{
            c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
            n = BatchNormalization<epsilon=0.001>(c, gamma, beta, mean, var)
            r = Relu(n)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            y = Gemm<transB=1>(f, fw, fb)
        }}
    """)
    shapes = {"w": (16, 3, 3, 3), "gamma": (16,), "beta": (16,), "mean": (16,), "fw": (10, 16), "fb": (10,)}
    model.graph.initializer.extend(weights(rng, **shapes))
    model.graph.initializer.append(numpy_helper.from_array(rng.random(16, dtype="float32") + 0.5, "var"))
    agree(model, {"x": rng.standard_normal((1, 3, 8, 8)).astype("float32")})


def test_attributes_that_became_inputs_are_converted() -> None:
    """Slice before opset 10, which TVM's oldest converter would misread."""
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 9]> g (float[4,6] x) => (float[2,6] y)'
        "{ y = Slice<axes=[0], starts=[1], ends=[3]>(x) }"
    )
    agree(model, {"x": np.arange(24, dtype="float32").reshape(4, 6)})


def test_resize_before_opset_11_is_converted() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 10]> g (float[1,1,2,2] x) => (float[1,1,4,4] y)'
        '<float[4] scales = {1,1,2,2}> { y = Resize<mode="nearest">(x, scales) }'
    )
    agree(model, {"x": np.arange(4, dtype="float32").reshape(1, 1, 2, 2)})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_image_is_resized_in_one_kernel(mode: str) -> None:
    """One axis after the other would write what lies between to memory, and read it again."""
    corner = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    attributes = corner if mode == "nearest" else 'mode="linear"'
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,3,5] x) => (float[1,8,6,15] y)'
        f"<float[4] scales = {{1,1,2,3}}> {{ y = Resize<{attributes}>(x, , scales) }}"
    )
    agree(model, {"x": np.random.default_rng(0).standard_normal((1, 8, 3, 5), dtype=np.float32)})
    groups = partition(normalize(load(model).mod)).groups
    assert sum(any("permute_dims" not in name for name in group.ops) for group in groups) == 1


def test_opset_below_7_is_converted() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> g (float[2,3] x, float[3] b) => (float[2,3] y)'
        "{ s = Add<broadcast=1>(x, b)\n y = Relu(s) }"
    )
    x, b = np.arange(6, dtype="float32").reshape(2, 3), np.array([-4, 0, 1], "float32")
    (y,) = run(load(model), {"x": x, "b": b})
    np.testing.assert_array_equal(y, np.maximum(x + b, 0))


def test_unused_domains_do_not_matter() -> None:
    model = mlp()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    assert load(model).outputs[0].shape == (2, 4)


def test_training_information_is_ignored() -> None:
    model = mlp()
    model.training_info.add().algorithm.name = "sgd"
    tvm.ir.assert_structural_equal(load(model).mod, load(mlp()).mod)


def test_stale_intermediate_shapes_are_inferred_anew() -> None:
    model = mlp()
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [7, 7]))
    tvm.ir.assert_structural_equal(load(model).mod, load(mlp()).mod)


def test_zoo_names_go_to_the_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def build(name: str, *, batch: int = 1, dtype: str = "float32") -> onnx.ModelProto:
        calls.append((name, batch, dtype))
        return mlp()

    monkeypatch.setattr(models, "build", build, raising=False)
    assert load("zoo:tiny").name == "tiny"
    load("zoo:tiny?batch=8&dtype=float16")
    assert calls == [("tiny", 1, "float32"), ("tiny", 8, "float16")]
    with pytest.raises(ModelError, match="unexpected keyword argument 'bach'"):
        load("zoo:tiny?bach=8")
    with pytest.raises(ModelError, match="names no model"):
        load("zoo:")
    with pytest.raises(ModelError, match="key=value"):
        load("zoo:tiny?batch")


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2)])
def test_values_that_do_not_fill_their_shape_are_refused(shape: tuple[int, ...]) -> None:
    weight = helper.make_tensor("w", 1, (2, 3), np.zeros(6, np.float32))
    del weight.dims[:]
    weight.dims.extend(shape)
    info = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weight])
    with pytest.raises(ModelError):
        load(helper.make_model(graph), {"x": shape})


@pytest.mark.parametrize("repeats", [2**31, 2**33])
def test_a_dimension_beyond_int32_is_refused(repeats: int) -> None:
    text = f"g (float[3] x) => (float[n] y) <int64[1] r = {{{repeats}}}> {{ y = Tile(x, r) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}')
    with pytest.raises(ShapeError, match=f"'y' has a dimension of {3 * repeats}; loops here count to 2147483647"):
        load(model)


def test_more_elements_than_any_memory_holds_are_refused() -> None:
    text = "g (float[1000, 1000] x) => (float[n, m] y) <int64[2] r = {3600, 3600}> { y = Tile(x, r) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}')
    with pytest.raises(ShapeError, match="'y' has 12960000000000 elements, more than fit into memory"):
        load(model)


def test_anything_else_is_refused() -> None:
    with pytest.raises(ModelError, match="not list"):
        load([1, 2])  # type: ignore[arg-type]
