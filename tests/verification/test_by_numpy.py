"""Products and convolutions of the untuned build are NumPy's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax
from tvm.relax import op

from subtune import frontends
from subtune.backends import host_device
from subtune.core.numerics import Numerics
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.verification.by_numpy import convolved, legalizations
from subtune.verification.references import UntunedBuild


def summed(x, w, strides, padding, dilation, groups):
    """The convolution element by element, in float64."""
    rank = len(strides)
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)])
    extents = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *extents))
    outs, ins = w.shape[0] // groups, w.shape[1]
    for n, o, *at in np.ndindex(*out.shape):
        for i, *tap in np.ndindex(*w.shape[1:]):
            place = [a * s + t * d for a, s, t, d in zip(at, strides, tap, dilation, strict=True)]
            out[(n, o, *at)] += x[(n, o // outs * ins + i, *place)] * float(w[(o, i, *tap)])
    return out


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "padding", "dilation", "groups"),
    [
        ((2, 3, 9), (4, 3, 3), [1], [1, 1], [1], 1),
        ((2, 4, 7, 6), (6, 2, 3, 2), [2, 1], [1, 0, 0, 1], [1, 2], 2),
        ((1, 5, 6, 6), (5, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], 5),
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 1), [1, 2, 1], [0, 1, 0, 1, 1, 0], [2, 1, 1], 1),
    ],
)
def test_convolutions_of_any_rank(shape, kernel, strides, padding, dilation, groups):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(dims).astype(np.float32) for dims in (shape, kernel))
    got = convolved(x, w, strides, padding, dilation, groups)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, summed(x, w, strides, padding, dilation, groups), rtol=1e-4, atol=1e-5)


def legalized(dtype, build, *shapes):
    bb = relax.BlockBuilder()
    args = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with bb.function("main", args):
        with bb.dataflow():
            out = bb.emit_output(build(*args))
        bb.emit_func_output(out)
    return relax.transform.LegalizeOps(legalizations())(bb.get())


@pytest.mark.parametrize(("dtype", "is_numpys"), [("float32", True), ("float64", True), ("float16", False)])
def test_halves_are_summed_as_tvm_sums_them(dtype, is_numpys):
    text = legalized(dtype, op.matmul, (2, 3), (3, 4)).script()
    assert ("call_dps_packed" in text, "prim_func" in text) == (is_numpys, not is_numpys)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))])
def test_products_of_halves_in_float32_are_numpys(dtype, shapes, device):
    mod = legalized(dtype, lambda x, w: op.matmul(x, w, out_dtype="float32"), *shapes)
    assert "call_dps_packed" in mod.script()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(dims).astype(np.dtype(dtype)) for dims in shapes)
    main = relax.VirtualMachine(tvm.compile(mod, target=device.target()), tvm.cpu())["main"]
    got = main(tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.astype(np.float64), rtol=1e-5, atol=1e-6)


def test_other_layouts(device):
    def conv(x, w):
        return op.nn.conv2d(x, w, strides=(1, 2), padding=(1, 0, 1, 0), data_layout="NHWC", kernel_layout="OHWI")

    mod = legalized("float32", conv, (1, 6, 7, 3), (4, 3, 3, 3))
    assert "call_dps_packed" in mod.script()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(dims).astype(np.float32) for dims in ((1, 6, 7, 3), (4, 3, 3, 3)))
    main = relax.VirtualMachine(tvm.compile(mod, target=device.target()), tvm.cpu())["main"]
    got = main(tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    moved = [array.transpose(0, 3, 1, 2) for array in (x, w)]
    expected = summed(*moved, [1, 2], [1, 0, 1, 0], [1, 1], 1).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_untuned_build_agrees_with_onnx_runtime():
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "d": (8, 1, 3, 3), "g": (8 * 6 * 6, 5), "b": (5,)}
    weights = [
        helper.make_tensor(name, 1, dims, rng.standard_normal(dims).astype(np.float32).tobytes(), raw=True)
        for name, dims in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Conv", ["c", "d"], ["e"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "g", "b"], ["y"]),
    ]
    x, y = helper.make_tensor_value_info("x", 1, [2, 3, 12, 12]), helper.make_tensor_value_info("y", 1, [2, 5])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    inputs = {"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)}
    with ThreadPoolExecutor(1) as beside:
        untuned = UntunedBuild(frontends.load(model), host_device(Numerics()), beside)
        got = untuned.start(1)(inputs)["y"]
        moved = untuned.moved(1, 0)(inputs)["y"]
    np.testing.assert_allclose(got, onnxruntime_reference(model)(inputs)["y"], rtol=1e-4, atol=1e-4)
    assert (moved != got).any(), "its weights are others"
