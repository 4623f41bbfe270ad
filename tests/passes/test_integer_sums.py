"""Products of bytes with zero points are sums of bytes, corrected: exactly what MatMulInteger and ConvInteger say."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import subtune
from subtune.frontends import load
from subtune.frontends.onnx.ops import import_onnx
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.passes.integer_products import integer_products
from subtune.pipeline import prepare
from tests.frontends.onnx.one_node import ours
from tests.qdq_graph import F, QdqGraph, feeds_of

RNG = np.random.default_rng(5)


def some(dtype: str, *dims: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, dims).astype(dtype)


def model_of(op: str, inputs: list[np.ndarray | None], run: tuple[int, ...], **attrs: Any) -> Any:
    """One node with the inputs `run` fed, and what is fed."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    feeds = {f"x{i}": x for i in run if (x := inputs[i]) is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    held = [
        numpy_helper.from_array(x, n) for n, x in zip(names, inputs, strict=True) if x is not None and n not in feeds
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", infos, [output], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), feeds


def by_onnx_runtime(model: onnx.ModelProto) -> np.ndarray:
    """A product of floats that hold integers, as int32."""
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    run = onnxruntime_reference(model)
    assert run is not None
    return run({})["y"].astype(np.int32)


def products(mod: tvm.IRModule, channels: int = 1) -> list[tuple[str, str, str]]:
    """The types of operands and results of all products, and of convolutions of more than `channels` channels."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            name = str(getattr(getattr(call, "op", None), "name", ""))
            if name == "relax.matmul" or (
                name.startswith("relax.nn.conv") and int(call.args[1].ty.shape[1]) > channels
            ):
                found.append((*(str(arg.ty.dtype) for arg in call.args[:2]), str(call.ty.dtype)))
    return found


def names(mod: tvm.IRModule) -> set[str]:
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return {str(getattr(getattr(value, "op", None), "name", "")).removeprefix("relax.") for value in values}


def wide(x: np.ndarray, zero: np.ndarray | None, is_row: bool = False) -> np.ndarray:
    if zero is None:
        return x.astype(np.int32)
    return x.astype(np.int32) - (zero[..., None] if is_row and zero.ndim == 1 else zero).astype(np.int32)


SHAPES = {
    "matrix": ((9, 16), (16, 12)),
    "batches": ((2, 3, 9, 16), (2, 3, 16, 12)),
    "rows of batches": ((2, 9, 16), (16, 12)),
}


@pytest.mark.parametrize("b_type", ["uint8", "int8"])
@pytest.mark.parametrize("a_type", ["uint8", "int8"])
@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.grid
def test_products(dims: str, a_type: str, b_type: str, is_constant: bool) -> None:
    """Zero points: none, one each, one of each row and column; known when the model is compiled, or not."""
    a, b = (some(dtype, *shape) for dtype, shape in zip((a_type, b_type), SHAPES[dims], strict=True))
    first = (0,) if is_constant else (0, 1)
    rows = some(a_type, 9) if a.ndim == 2 else some(a_type, *a.shape[:-1], 1)
    cases = [
        (None, None, ()),
        (some(a_type), some(b_type), ()),
        (some(a_type), some(b_type), (2, 3)),
        (rows, some(b_type, 12), (2,)),
    ]
    for za, zb, run in cases:
        za, zb = (None if z is None else np.asarray(z) for z in (za, zb))
        model, feeds = model_of("MatMulInteger", [a, b, za, zb], (*first, *(run if za is not None else ())))
        wanted = wide(a, za, True) @ wide(b, zb)
        np.testing.assert_array_equal(ours(model, feeds), wanted)
        assert products(integer_products(import_onnx(model))) == [(a_type, "int8", "int32")]


@pytest.mark.parametrize("zero", [0, 128, 90, 255])
@pytest.mark.parametrize("of", ["uint8", "int8"])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.grid
def test_convolutions(of: str, zero: int, is_known: bool) -> None:
    """Padding is of the input's zero point, known or not; weights may be any bytes with any zero point."""
    x, w = some("uint8", 2, 6, 9, 8), some(of, 10, 6, 3, 3)
    point = np.array(zero - (128 if of == "int8" else 0), of)
    run = (0,) if is_known else (0, 2)
    attrs: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}
    model, feeds = model_of("ConvInteger", [x, w, np.array(77, "uint8"), point], run, **attrs)
    floats, _ = model_of("Conv", [wide(x, np.array(77)).astype(F), wide(w, point).astype(F)], (), **attrs)
    np.testing.assert_array_equal(ours(model, feeds), by_onnx_runtime(floats))
    assert products(integer_products(import_onnx(model))) == [("uint8", "int8", "int32")]


@pytest.mark.parametrize("zero", [128, 90])
@pytest.mark.parametrize("group", [2, 8])
def test_groups(group: int, zero: int) -> None:
    """What leaves 8 bits is held in 16: kernels of groups multiply no words of bytes."""
    inputs = [
        some("uint8", 1, 8, 5, 5),
        some("uint8", 8, 8 // group, 3, 3),
        np.array(7, "uint8"),
        np.array(zero, "uint8"),
    ]
    model, feeds = model_of("ConvInteger", inputs, (0,), group=group, pads=[1] * 4)
    mod = integer_products(import_onnx(model))
    assert {dtypes[:2] for dtypes in products(mod, 0)} == {("uint8", "int8" if zero == 128 else "int16")}
    floats, _ = model_of(
        "Conv",
        [wide(x, z).astype(F) for x, z in zip(inputs[:2], inputs[2:], strict=True)],
        (),
        group=group,
        pads=[1] * 4,
    )
    np.testing.assert_array_equal(ours(model, feeds), by_onnx_runtime(floats))


def test_pointwise_windows_are_sums_of_channels() -> None:
    inputs = [some("uint8", 1, 8, 5, 5), some("uint8", 6, 8, 1, 1), np.array(7, "uint8"), np.array(90, "uint8")]
    model, feeds = model_of("ConvInteger", inputs, (0,))
    assert products(integer_products(import_onnx(model)), 0) == [("uint8", "int8", "int32")]
    sums = np.einsum("nchw,oc->nohw", wide(inputs[0], inputs[2]), wide(inputs[1], inputs[3])[:, :, 0, 0])
    np.testing.assert_array_equal(ours(model, feeds), sums)


@pytest.mark.parametrize(
    ("kind", "dtype", "zero"), [("Conv", "uint8", 100), ("MatMul", "uint8", 200), ("Conv", "int8", 5)]
)
def test_weights_whose_difference_leaves_bytes(kind: str, dtype: str, zero: int, tmp_path: Path) -> None:
    """Of a QDQ model: the bits of ONNX Runtime."""
    g = QdqGraph((2, 8, 9, 10) if kind == "Conv" else (2, 5, 48), zero=131)
    w, _ = g.weight((12, 8, 3, 3) if kind == "Conv" else (48, 24), None, dtype, zero)
    y = g.op(kind, g.operand(), w, **({"pads": [1] * 4} if kind == "Conv" else {}))
    model = g.model(g.quantised(y, 0.11, 120))
    feeds, reference = feeds_of(model), onnxruntime_reference(model)
    assert reference is not None
    assert ("uint8", "int8", "int32") in products(integer_products(load(model).mod))
    (got,) = subtune.compile(model, output=tmp_path / "a", tune=False, verify=False).run(feeds).values()
    (wanted,) = reference(feeds).values()
    assert np.ptp(wanted.astype(int)) > 100
    np.testing.assert_array_equal(got, wanted)


def test_sums_of_rows_join_the_epilogue() -> None:
    """Of a product over batches, whose rows are made one dim: the sums of int32 stay in its kernel."""
    g = QdqGraph((2, 5, 48), zero=131)
    w, _ = g.weight((48, 24), None, "uint8", 200)
    subgraphs = prepare(g.model(g.quantised(g.op("MatMul", g.operand(), w), 0.11, 120))).subgraphs
    stored = sorted((arg.dtype, prod(arg.shape)) for s in subgraphs for arg in s.workload.args if arg.is_output)
    assert stored == [("int32", 10), ("uint8", 240), ("uint8", 480)]


def attention(dtype: str, zero: int, keys: int = 16) -> onnx.ModelProto:
    """Queries, keys and values from one input, quantised wherever a quantiser of transformers does so."""
    g = QdqGraph((2, 16, 32), dtype=dtype, zero=zero)

    def projected(kind: str, order: list[int]) -> str:
        w, scales = g.weight((32, 32), 1)
        y = g.op("Add", g.op("MatMul", g.operand(), w), g.bias(32, scales, "float"))
        held = g.floats(g.quantised(y, 0.05, zero), 0.05, zero)
        return g.op("Transpose", g.op("Reshape", held, g.constant(np.array([2, 16, 4, 8]))), perm=order)

    query, key, value = (
        projected(kind, order) for kind, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    scores = g.op("Div", g.op("MatMul", query, key), g.constant(F(8**0.5)))
    scores = g.floats(g.quantised(scores, 0.3, zero), 0.3, zero)
    low = 0 if dtype == "uint8" else -128
    shares = g.floats(g.quantised(g.op("Softmax", scores, axis=-1), 1 / 256, low), 1 / 256, low)
    y = g.op(
        "Reshape",
        g.op("Transpose", g.op("MatMul", shares, value), perm=[0, 2, 1, 3]),
        g.constant(np.array([2, 16, 32])),
    )
    return g.model(g.quantised(y, 0.04, zero))


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 131), ("uint8", 128), ("int8", 0), ("int8", 5)])
def test_attention(dtype: str, zero: int, tmp_path: Path) -> None:
    """Every product is of bytes; keys and values are int8 where they are quantised, not turned into it later."""
    model = attention(dtype, zero)
    mod = integer_products(load(model).mod)
    assert products(mod) == [(dtype, "int8", "int32")] * 5
    assert "bitwise_xor" not in names(mod)
    feeds = feeds_of(model)
    (got,) = subtune.compile(model, output=tmp_path / "a", tune=False, verify=False).run(feeds).values()
    reference = onnxruntime_reference(model)
    if reference is None:
        pytest.skip("ONNX Runtime refuses the model")
    (wanted,) = reference(feeds).values()
    assert np.ptp(wanted.astype(int)) > 100
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


def test_bytes_that_are_given_are_turned() -> None:
    """uint8 that the model takes as input has nobody who could quantise it otherwise."""
    model, _ = model_of("MatMulInteger", [some("uint8", 4, 8), some("uint8", 8, 6)], (0, 1))
    assert "bitwise_xor" in names(integer_products(import_onnx(model)))


def test_one_row_is_not_worth_the_sums() -> None:
    """Of one row by many keys the sums of the keys cost as much as the product."""
    for rows, is_left in ((1, True), (2, False)):
        inputs = [some("uint8", rows, 64), some("int8", 64, 48), np.array(3, "uint8"), np.array(5, "int8")]
        model, feeds = model_of("MatMulInteger", inputs, (0, 1))
        (found,) = products(integer_products(import_onnx(model)))
        assert (found[0] == "int32") == is_left
        a, b = feeds["x0"].astype(int) - 3, feeds["x1"].astype(int) - 5
        np.testing.assert_array_equal(ours(model, feeds), a @ b)


def test_vectors_stay_as_they_are() -> None:
    model, feeds = model_of("MatMulInteger", [some("uint8", 16), some("int8", 16, 4)], (0, 1))
    assert products(integer_products(import_onnx(model))) == [("int32", "int32", "int32")]
    np.testing.assert_array_equal(ours(model, feeds), feeds["x0"].astype(int) @ feeds["x1"].astype(int))
