import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend.onnx import from_onnx

from subtune.core.errors import SubtuneError
from subtune.passes.run import Dump, PassError, Phase, run_passes
from subtune.pipeline import NORMALIZE, normalize

RNG = np.random.default_rng(0)


def _model(nodes, inputs, outputs, weights):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def _weights(**shapes):
    return {
        name: np.abs(RNG.standard_normal(shape)).astype("float32") + 0.5
        if name.endswith("var")
        else (RNG.standard_normal(shape) * 0.5).astype("float32")
        for name, shape in shapes.items()
    }


def _residual_network():
    node = helper.make_node
    weights = _weights(
        w1=(8, 3, 3, 3), scale=(8,), bias=(8,), mean=(8,), var=(8,), w2=(8, 1, 3, 3), b2=(8,), fc=(5, 8), fb=(5,)
    )
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
        node("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1] * 4, group=8),
        node("Identity", ["c2"], ["i2"]),
        node("Sum", ["i2", "r1"], ["s"]),
        node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "fc", "fb"], ["y"], transB=1, alpha=0.5),
    ]
    return _model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5]}, weights)


def _encoder_block():
    node = helper.make_node
    weights = _weights(g=(16,), b=(16,), w1=(16, 32), b1=(32,), w2=(32, 16), b2=(16,))
    for name, value in {"two": 2.0, "eps": 1e-5, "root": np.sqrt(2.0), "one": 1.0, "half": 0.5}.items():
        weights[name] = np.array(value, "float32")
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1]),
        node("Sub", ["x", "m"], ["d"]),
        node("Pow", ["d", "two"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1]),
        node("Add", ["v", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", ["d", "sd"], ["n"]),
        node("Mul", ["n", "g"], ["ng"]),
        node("Add", ["ng", "b"], ["ln"]),
        node("MatMul", ["ln", "w1"], ["h"]),
        node("Add", ["b1", "h"], ["hb"]),
        node("Div", ["hb", "root"], ["e0"]),
        node("Erf", ["e0"], ["e1"]),
        node("Add", ["e1", "one"], ["e2"]),
        node("Mul", ["hb", "e2"], ["e3"]),
        node("Mul", ["e3", "half"], ["ge"]),
        node("MatMul", ["ge", "w2"], ["o"]),
        node("Add", ["o", "b2"], ["ob"]),
        node("Add", ["ob", "x"], ["y"]),
    ]
    return _model(nodes, {"x": [2, 6, 16]}, {"y": [2, 6, 16]}, weights)


def test_a_residual_network(ops, agree):
    before = from_onnx(_residual_network(), keep_params_in_input=False)
    after = normalize(before)
    assert ops(after) == {
        "permute_dims": 1,
        "nn.conv2d": 2,
        "add": 4,
        "nn.relu": 1,
        "nn.max_pool2d": 1,
        "mean": 1,
        "reshape": 1,
        "matmul": 1,
    }
    agree(before, after, 1e-5)


def test_an_encoder_block(ops, agree):
    before = from_onnx(_encoder_block(), keep_params_in_input=False)
    after = normalize(before)
    assert ops(after) == {"reshape": 3, "nn.layer_norm": 1, "matmul": 2, "add": 3, "nn.gelu": 1}
    agree(before, after, 1e-5)


def test_against_onnxruntime(run):
    ort = pytest.importorskip("onnxruntime")
    for model, shape in ((_residual_network(), (1, 3, 8, 8)), (_encoder_block(), (2, 6, 16))):
        x = RNG.standard_normal(shape).astype("float32")
        (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )
        (got,) = run(normalize(from_onnx(model, keep_params_in_input=False)), [x])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_normalize_is_pure_and_idempotent(ops):
    before = from_onnx(_residual_network(), keep_params_in_input=False)
    count = ops(before)
    once = normalize(before)
    assert ops(before) == count
    twice = normalize(once)
    tvm.ir.assert_structural_equal(once, twice)


def test_the_interface_of_main_stays():
    before = from_onnx(_residual_network(), keep_params_in_input=False)
    after = normalize(before)
    tvm.ir.assert_structural_equal(before["main"].ret_ty, after["main"].ret_ty)
    assert [p.name for p in before["main"].params] == [p.name for p in after["main"].params]
    assert str(before["main"].attrs) == str(after["main"].attrs)


def test_symbolic_shapes_stay_symbolic_and_right(run):
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(op.nn.relu(op.permute_dims(op.reshape(x, (n, 2, 2)), [0, 2, 1])))
        bb.emit_func_output(out)
    before = bb.finalize()
    after = normalize(before)
    assert after["main"].ret_ty.shape[0].same_as(after["main"].params[0].ty.shape[0])
    for rows in (1, 5):
        values = RNG.standard_normal((rows, 4), dtype=np.float32)
        expected = np.maximum(values.reshape(rows, 2, 2).transpose(0, 2, 1), 0)
        np.testing.assert_array_equal(run(after, [values])[0], expected)


def test_a_branch_keeps_the_variables_it_mentions(run):
    x, flag = relax.Var("x", relax.TensorType((3,), "float32")), relax.Var("flag", relax.TensorType((), "bool"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, flag]):
        with bb.dataflow():
            y = bb.emit_output(op.reshape(op.reshape(x, (1, 3)), (3,)))
        yes = relax.SeqExpr([], bb.normalize(op.exp(y)))
        no = relax.SeqExpr([], bb.normalize(op.negative(y)))
        out = bb.emit(relax.If(flag, bb.normalize(yes), bb.normalize(no)))
        bb.emit_func_output(out)
    after = normalize(bb.finalize())
    arrays = [np.array([1, 2, 3], "float32"), np.array(False)]
    np.testing.assert_array_equal(run(after, arrays)[0], [-1, -2, -3])


def broken(mod):
    raise ValueError("no such axis\nwith a second line")


def ill_formed(mod):
    stranger = relax.Var("stranger", mod["main"].params[0].ty)
    main = mod["main"]
    return tvm.IRModule({"main": relax.Function(main.params, relax.SeqExpr([], stranger), ret_ty=stranger.ty)})


@pytest.mark.parametrize("bad", [broken, ill_formed])
def test_a_failing_pass_is_named_with_those_before_it(bad, module):
    mod = module([((2, 3), "float32")], op.nn.relu)
    phases = (NORMALIZE[0], Phase("mine", (bad,)))
    with pytest.raises(
        PassError, match=f"pass mine/{bad.__name__} failed, after repeated/repeated_constants"
    ) as caught:
        run_passes(mod, phases)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, SubtuneError)


def test_dumps_each_pass(module, tmp_path):
    mod = module([((2, 3), "float32")], op.nn.relu)
    run_passes(mod, NORMALIZE, dump=Dump(tmp_path / "dump"))
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert len(names) == sum(len(phase.passes) for phase in NORMALIZE)
    assert names[0] == "01-repeated_constants.py"
    assert "relu" in (tmp_path / "dump" / names[-1]).read_text()
